# Nothing is open to PUBLIC (C104), and objects with the same names as ours, or as the
# server's own functions, operators and types, have no effect in whatever search_path
# (C47, C106).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $node = new_node('security');
my $dbh = session($node);
my ($m, $id);

#
# C104
#

$dbh->do('CREATE ROLE nobody LOGIN');
my $nobody = session($node, user => 'nobody');

my @functions = map { $_->{f} } rows($dbh, q(
	SELECT format('%s(%s)', p.oid::regproc, (SELECT string_agg('NULL::' || format_type(t, NULL), ', ') FROM unnest(p.proargtypes) t)) AS f
	FROM pg_proc p WHERE p.pronamespace = 'taskoutbox'::regnamespace AND p.prorettype <> 'trigger'::regtype));
my @relations = map { $_->{r} } rows($dbh, q(
	SELECT c.oid::regclass::text AS r FROM pg_class c
	WHERE c.relnamespace = 'taskoutbox'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p')));
cmp_ok(scalar(@functions), '>=', 8, 'functions: ' . join(' ', @functions));
cmp_ok(scalar(@relations), '>=', 5, 'relations: ' . join(' ', @relations));

# First without the schema, then with it.
for my $granted (0, 1)
{
	$dbh->do('GRANT USAGE ON SCHEMA taskoutbox TO nobody') if $granted;
	my $with = $granted ? 'with USAGE on the schema' : 'a plain role';
	is(state_of($nobody, "SELECT $_"), '42501', "$with cannot call $_") for @functions;
	is(state_of($nobody, "SELECT * FROM $_"), '42501', "$with cannot read $_") for @relations;
}
is(state_of($nobody, $_), '42501', "cannot: $_")
  for q(INSERT INTO taskoutbox.task_outbox (task_type) VALUES ('x')),
  q(DELETE FROM taskoutbox.task_outbox),
  q(UPDATE taskoutbox.task_outbox SET task_type = 'x'),
  q(TRUNCATE taskoutbox.task_outbox),
  q(DO 'BEGIN LOCK TABLE taskoutbox.task_outbox; END'),
  q(INSERT INTO taskoutbox.queue VALUES ('x', 'embedded', '1 s', 1)),
  q(SELECT nextval('taskoutbox.task_outbox_id_seq')),
  q(SELECT setval('taskoutbox.task_outbox_id_seq', 1)),
  q(CREATE TABLE taskoutbox.mine (x int)),
  q(CREATE TEMP TABLE mine (x taskoutbox.message)),
  q(CREATE TRIGGER mine BEFORE INSERT ON taskoutbox.task_outbox FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger());
is( value($dbh, q(SELECT string_agg(p.oid::regprocedure::text, ' ') FROM pg_proc p
		WHERE p.pronamespace = 'taskoutbox'::regnamespace
			AND (p.proacl IS NULL OR EXISTS (SELECT 1 FROM aclexplode(p.proacl) x WHERE x.grantee = 0)))),
	undef, 'no function has a privilege for PUBLIC');
is( value($dbh, q(SELECT string_agg(t.typname, ' ') FROM pg_type t
		WHERE t.typnamespace = 'taskoutbox'::regnamespace AND t.typtype <> 'b'
			AND (t.typacl IS NULL OR EXISTS (SELECT 1 FROM aclexplode(t.typacl) x WHERE x.grantee = 0)))),
	undef, 'no type either');
is( value($dbh, q(SELECT string_agg(c.relname, ' ') FROM pg_class c
		WHERE c.relnamespace = 'taskoutbox'::regnamespace
			AND EXISTS (SELECT 1 FROM aclexplode(c.relacl) x WHERE x.grantee = 0))),
	undef, 'no relation either');

# What is granted works, and brings nothing else.
$dbh->do('GRANT EXECUTE ON FUNCTION taskoutbox.enqueue TO nobody');
$id = enqueue($nobody, 'g');
ok($id, 'EXECUTE on enqueue is all that a producer needs');
is(state_of($nobody, q(INSERT INTO taskoutbox.task_outbox (task_type) VALUES ('x'))), '42501', 'he still cannot insert by himself');
is(state_of($nobody, 'SELECT * FROM taskoutbox.receive()'), '42501', 'nor receive');
$dbh->do('CREATE ROLE worker LOGIN');
$dbh->do('GRANT USAGE ON SCHEMA taskoutbox TO worker');
$dbh->do("GRANT EXECUTE ON FUNCTION $_ TO worker")
  for 'taskoutbox.receive', 'taskoutbox.delete(text, boolean)', 'taskoutbox.change_visibility';
my $worker = session($node, user => 'worker');
($m) = receive($worker, wait => '5 s');
is($m->{id}, $id, 'a consumer needs EXECUTE on receive');
is(value($worker, q(SELECT taskoutbox.change_visibility($1, '1 min')), $m->{receipt_handle}), 1, 'change_visibility');
is(value($worker, q(SELECT taskoutbox.delete($1)), $m->{receipt_handle}), 1, 'and delete');
is(state_of($worker, 'SELECT * FROM taskoutbox.task_outbox'), '42501', 'he cannot read the table');
is(state_of($worker, q(SELECT taskoutbox.enqueue('x'))), '42501', 'nor enqueue');

# An error inside leaves nobody with the owner's rights.
is(state_of($nobody, q(SELECT taskoutbox.enqueue(''))) =~ /^TO/ ? 1 : 0, 1, 'a refused call');
is(value($nobody, 'SELECT current_user'), 'nobody', 'he is still himself');
$nobody->do('BEGIN');
$nobody->do('SAVEPOINT s');
state_of($nobody, q(SELECT taskoutbox.enqueue('x', queue => 'no such queue')));
$nobody->do('ROLLBACK TO s');
is(state_of($nobody, 'DELETE FROM taskoutbox.task_outbox'), '42501', 'also in the same transaction');
$nobody->do('ROLLBACK');

#
# C47, C106
#

# A schema full of traps: each raises an error when it is used.
$dbh->do('CREATE SCHEMA evil');
$dbh->do('GRANT ALL ON SCHEMA evil, public TO PUBLIC');
$dbh->do('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA taskoutbox TO nobody');
$dbh->do('GRANT SELECT ON taskoutbox.relay_status, taskoutbox.queue_metrics TO nobody');

sub set_traps
{
	my ($s, $schema) = @_;
	my $trap = sub {
		my ($name, $args, $returns) = @_;
		$s->do(qq(CREATE FUNCTION $schema.$name($args) RETURNS $returns LANGUAGE plpgsql AS
			'BEGIN RAISE EXCEPTION ''trap: $schema.$name($args)''; END'));
	};

	# relations and types with our names
	$s->do("CREATE TABLE $schema.$_ (id int, name int, trap int)") for qw(task_outbox queue dead_letter);
	$s->do("CREATE VIEW $schema.$_ AS SELECT 1 AS trap") for qw(relay_status queue_metrics);
	$s->do("CREATE SEQUENCE $schema.task_outbox_id_seq");
	$s->do("CREATE TYPE $schema.$_ AS (trap int)") for qw(message enqueued);
	# types with the server's names; they hide text, jsonb and so on
	$s->do(qq(CREATE TYPE $schema."$_" AS (trap int))) for qw(text jsonb int8 int4 bool interval timestamptz oid);
	# casts from and to those
	$trap->('to_trap', qq(pg_catalog.text), qq($schema."text"));
	$s->do(qq(CREATE CAST (pg_catalog.text AS $schema."text") WITH FUNCTION $schema.to_trap(pg_catalog.text) AS IMPLICIT))
	  if value($s, 'SELECT 1 FROM pg_roles WHERE rolname = current_user AND rolsuper');

	# functions with our names, and those of the server that such code uses
	$trap->('enqueue', 'pg_catalog.text', 'pg_catalog.int8');
	$trap->('delete', 'pg_catalog.text, pg_catalog.bool DEFAULT false', 'pg_catalog.bool');
	$trap->('receive', '', 'pg_catalog.int8');
	$trap->('get_relay_status', '', 'pg_catalog.int8');
	$trap->('get_queue_metrics', '', 'pg_catalog.int8');
	$trap->($_, '', 'pg_catalog.timestamptz') for qw(now clock_timestamp transaction_timestamp statement_timestamp);
	$trap->($_, 'pg_catalog.regclass', 'pg_catalog.int8') for qw(nextval currval);
	$trap->('nextval', 'pg_catalog.text', 'pg_catalog.int8');
	$trap->($_, 'pg_catalog.text', 'pg_catalog.int4') for qw(length octet_length);
	$trap->('jsonb_typeof', 'pg_catalog.jsonb', 'pg_catalog.text');
	$trap->('to_jsonb', 'pg_catalog.anyelement', 'pg_catalog.jsonb');
	$trap->('coalesce_trap', 'pg_catalog.text', 'pg_catalog.text');
	$trap->('count', 'pg_catalog.int8', 'pg_catalog.int8');
	$trap->('pg_backend_pid', '', 'pg_catalog.int4');

	# operators
	my %types = map { $_ => "pg_catalog.$_" } qw(int8 int4 text oid timestamptz interval jsonb bool name);
	for my $op ('=', '<>', '<', '<=', '>', '>=')
	{
		my $f = 'op_' . unpack('H*', $op);
		for my $t (sort keys %types)
		{
			$trap->("${f}_$t", "$types{$t}, $types{$t}", 'pg_catalog.bool');
			$s->do("CREATE OPERATOR $schema.$op (LEFTARG = $types{$t}, RIGHTARG = $types{$t}, FUNCTION = $schema.${f}_$t)");
		}
		$trap->("${f}_mixed", 'pg_catalog.int8, pg_catalog.int4', 'pg_catalog.bool');
		$s->do("CREATE OPERATOR $schema.$op (LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int4, FUNCTION = $schema.${f}_mixed)");
	}
	my @others = (
		[ '||', 'text', 'text', 'text' ], [ '->', 'jsonb', 'text', 'jsonb' ], [ '->>', 'jsonb', 'text', 'text' ],
		[ '+', 'timestamptz', 'interval', 'timestamptz' ], [ '-', 'timestamptz', 'interval', 'timestamptz' ],
		[ '-', 'timestamptz', 'timestamptz', 'interval' ], [ '+', 'int8', 'int8', 'int8' ], [ '-', 'int8', 'int8', 'int8' ],
		[ '+', 'int4', 'int4', 'int4' ], [ '~', 'text', 'text', 'bool' ], [ '@>', 'jsonb', 'jsonb', 'bool' ]);
	for my $o (@others)
	{
		my ($op, $l, $r, $result) = @$o;
		my $f = 'op_' . unpack('H*', $op) . "_${l}_$r";
		$trap->($f, "$types{$l}, $types{$r}", $types{$result});
		$s->do("CREATE OPERATOR $schema.$op (LEFTARG = $types{$l}, RIGHTARG = $types{$r}, FUNCTION = $schema.$f)");
	}
	return;
}

my $hostile = session($node, user => 'nobody');
set_traps($hostile, 'public');
set_traps($dbh, 'evil');

# Temporary objects, which come first even if nobody names them.
sub set_temporary_traps
{
	my ($s) = @_;
	$s->do("CREATE TEMP TABLE $_ (id int, trap int)") for qw(task_outbox queue dead_letter relay_status queue_metrics);
	$s->do(qq(CREATE TYPE pg_temp."$_" AS (trap int))) for qw(text jsonb int8 bool interval timestamptz message enqueued);
	$s->do('CREATE TEMP SEQUENCE task_outbox_id_seq');
	return;
}

# The traps are armed: the same operators and functions in our own statements do
# raise their errors.
$dbh->do('SET search_path = evil, public, pg_catalog');
is(state_of($dbh, 'SELECT 1::pg_catalog.int8 = 1::pg_catalog.int8'), 'P0001', 'trap = works');
is(state_of($dbh, q(SELECT 'a'::pg_catalog.text || 'b'::pg_catalog.text)), 'P0001', 'trap || works');
is(state_of($dbh, 'SELECT now()'), 'P0001', 'trap now() works');
$dbh->do('RESET search_path');

# Everything that a program does, by a session with that search_path.  Only our own
# names are qualified, and only by schema.
sub whole_story
{
	my ($s, $what) = @_;
	my ($e, $r);
	my $story = eval {
		$s->do(qq(SELECT taskoutbox.create_queue('$what', visibility_timeout => '1 min', max_receive_count => 1)));
		$e = value($s, qq(SELECT id FROM taskoutbox.enqueue('test', '{"a": 1}', group_id => 'g', queue => '$what', headers => '{"h": "x"}')));
		my $e2 = value($s, qq(SELECT id FROM taskoutbox.enqueue('test', queue => '$what', group_id => 'h')));
		my @r = rows($s, qq(SELECT * FROM taskoutbox.receive('$what', 10, '1 min', '5 s')));
		while (@r < 2) { push @r, rows($s, qq(SELECT * FROM taskoutbox.receive('$what', 10, '1 min', '5 s'))) or last }
		die "received @{[ids(@r)]}\n" unless @r == 2;
		my ($one) = grep { $_->{id} == $e } @r;
		my ($two) = grep { $_->{id} == $e2 } @r;
		$s->do('SELECT taskoutbox.change_visibility($1, $2, error => $3)', undef, $one->{receipt_handle}, '2 min', 'trying');
		$s->do('SELECT taskoutbox.delete(ARRAY[$1]::pg_catalog.text[])', undef, $one->{receipt_handle});
		# a dead letter, moved by the relay
		$s->do(q(SELECT taskoutbox.change_visibility($1, '0', error => 'no')), undef, $two->{receipt_handle});
		poll(sub { value($dbh, q(SELECT id FROM taskoutbox.dead_letter WHERE id = $1), $e2) }, 10) or die "no dead letter\n";
		my ($q) = grep { $_->{queue} eq $what } rows($s, 'SELECT * FROM taskoutbox.queue_metrics');
		die "no figures\n" unless $q && defined $q->{delivered};
		my ($status) = grep { $_->{database} eq 'postgres' } rows($s, 'SELECT * FROM taskoutbox.relay_status');
		die "no status\n" unless $status && $status->{state} eq 'running';
		1;
	};
	is($story ? '' : $@, '', "no effect on: $what");
	return;
}

for my $path ('evil, public, pg_catalog', 'public, evil', 'pg_temp, evil, public, pg_catalog', 'pg_temp, pg_catalog, public')
{
	for my $as ('owner', 'nobody')
	{
		my $s = $as eq 'owner' ? session($node) : session($node, user => 'nobody');
		set_temporary_traps($s) if $path =~ /pg_temp/;
		$s->do("SET search_path = $path");
		whole_story($s, "$path, by $as");
		if ($as eq 'owner')
		{
			# our trigger, in the session of somebody with a hostile path
			is( state_of($s, q(INSERT INTO taskoutbox.task_outbox (task_type, payload, group_id) VALUES ('direct', '{"b": 2}', 'i'))),
				'00000', "no effect on INSERT: $path");
		}
	}
}
$dbh->do('DELETE FROM taskoutbox.task_outbox');

# The owner of a database can set the path of every session in it, the relay's too.
my $log = -s $node->logfile;
$dbh->do('ALTER DATABASE postgres SET search_path = evil, public, pg_catalog');
my $old = relay_pid($dbh);
value($dbh, 'SELECT pg_terminate_backend($1)', $old);
ok(poll(sub { my $p = relay_pid($dbh); $p && $p != $old }, 30), 'a relay starts in a database with a hostile search_path');
whole_story(session($node), 'path of the database');
unlike(slurp_file($node->logfile, $log), qr/trap: /, 'nobody fell into a trap');
$dbh->do('ALTER DATABASE postgres RESET search_path');

# CREATE EXTENSION in a database that is full of traps already.
$dbh->do('CREATE DATABASE trapped');
my $trapped = session($node, dbname => 'trapped');
$trapped->do('GRANT ALL ON SCHEMA public TO PUBLIC');
$trapped->do('CREATE SCHEMA evil');
set_traps(session($node, dbname => 'trapped', user => 'nobody'), 'public');
set_traps($trapped, 'evil');
$trapped->do('SET search_path = evil, public, pg_catalog');
is(state_of($trapped, 'CREATE EXTENSION taskoutbox'), '00000', 'CREATE EXTENSION among traps');
wait_for_relay($node, 'trapped');
$id = value($trapped, q(SELECT id FROM taskoutbox.enqueue('test')));
is(ids(rows($trapped, q(SELECT * FROM taskoutbox.receive(wait => '5 s')))), $id, 'and it works');

# The schema must not belong to somebody else, who could then replace what is in it.
$dbh->do('CREATE DATABASE squatted');
my $squatted = session($node, dbname => 'squatted');
$squatted->do('CREATE SCHEMA taskoutbox AUTHORIZATION nobody');
is(state_of($squatted, 'CREATE EXTENSION taskoutbox'), '42P06', 'CREATE EXTENSION refuses a schema of another role');

done_testing();
