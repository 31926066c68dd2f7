# Measures 1 to 5: enqueue, beside an INSERT into a table of the same content.

package Bench::Enqueue;

use strict;
use warnings FATAL => 'all';

use Bench;

my $is_setup;

sub setup_enqueue
{
	return if $is_setup++;
	for my $table (qw(base base_unique))
	{
		run_sql(qq(CREATE TABLE $table (id bigserial PRIMARY KEY, queue text, task_type text, payload text,
			group_id text, deduplication_id text, headers text, enqueued_at timestamptz DEFAULT now())));
	}
	run_sql('CREATE UNIQUE INDEX ON base_unique (deduplication_id)');
	return;
}

# What runs, and how its rows are thrown away afterwards.
my $set = "\\set g random(1, 1000)\n\\set d random(1, 1000000000000000)\n";
my %side = (
	base => [ q(INSERT INTO base (queue, task_type, payload, group_id)
		VALUES ('default', 'bench', :payload, 'g' || :g::int)), 'TRUNCATE base' ],
	ours => [ q(SELECT taskoutbox.enqueue('bench', :payload::jsonb, 'g' || :g::int)), '' ],
	base_unique => [ q(INSERT INTO base_unique (queue, task_type, payload, group_id, deduplication_id)
		VALUES ('default', 'bench', :payload, 'g' || :g::int, 'order/' || :d::bigint)), 'TRUNCATE base_unique' ],
	ours_unique => [ q(SELECT taskoutbox.enqueue('bench', :payload::jsonb, 'g' || :g::int, 'order/' || :d::bigint)), '' ],
	PgQ => [ q(SELECT pgq.insert_event('bench', 'bench', :payload)), 'pgq' ],
	'graphile-worker' => [ q(SELECT graphile_worker.add_job('bench', :payload::json)),
		'TRUNCATE graphile_worker._private_jobs' ],
	'pg-boss' => [ undef, 'TRUNCATE pgboss.job' ]);

sub script_of
{
	my ($name) = @_;
	$side{$name}[0] //= join("\n", peer_lines($name, 'insert')) if $name eq 'pg-boss';
	return "$set$side{$name}[0];\n";
}

sub throw_away
{
	my ($name) = @_;
	my $how = $side{$name}[1];

	return forget_tasks() if $how eq '';
	# It writes to one of three tables, in turn.
	$how = 'TRUNCATE ' . value(q(SELECT string_agg(i.inhrelid::regclass::text, ', ') FROM pg_inherits i, pgq.queue q
		WHERE q.queue_name = 'bench' AND i.inhparent = q.queue_data_pfx::regclass)) if $how eq 'pgq';
	return run_sql($how);
}

sub enqueue_tps
{
	my ($name, $clients) = @_;
	my $tps = pgbench(script_of($name), clients => $clients, seconds => full(3, 1))->{tps};
	throw_away($name);
	return $tps;
}

my @peers = ('PgQ', 'graphile-worker', 'pg-boss');

sub enqueue_ratio
{
	my ($number, $what, $base, $ours, $target, @with) = @_;

	for my $clients (1, 4, 16)
	{
		my $title = "$what, $clients client" . ($clients > 1 ? 's' : '');
		my $got = alternate($title,
			[ $base => sub { enqueue_tps($base, $clients) } ],
			[ $ours => sub { enqueue_tps($ours, $clients) } ],
			map { my $name = $_; [ $name => sub { enqueue_tps($name, $clients) }, $name ] } @with);
		compare($number, "$title: tx/s to INSERT's", $got, $ours, $base, $target);
		compare($number, "  $_", $got, $_, $base, undef) for @with;
		row($number, '  INSERT: tx/s', undef, @{ $got->{$base} });
	}
	return;
}

measure('1', 'enqueue', sub {
	setup_enqueue();
	enqueue_ratio('1', 'enqueue', 'base', 'ours', '>= 0.97', @peers);
});

measure('2', 'deduplication', sub {
	setup_enqueue();
	enqueue_ratio('2', 'with a deduplication id', 'base_unique', 'ours_unique', '>= 0.90');
});

# One session's transactions: CPU time of its backend, and bytes of WAL, for each.
sub cost
{
	my ($name) = @_;
	my $n = full(5000, 2000);
	my $session = session();
	my $pid = $session->{pg_pid};
	my $cpu = sub {
		open(my $fh, '<', "/proc/$pid/schedstat") or die "schedstat: $!";
		return (split ' ', <$fh>)[0] / 1000;
	};
	my $sql = script_of($name);
	$sql =~ s/^\\.*\n//mg;
	# All that varies is one number: the group and the deduplication id.
	$sql =~ s/:(payload|[gd])\b/$1 eq 'payload' ? '$1' : '$2'/ge;
	my $sth = $session->prepare($sql);
	my @bind = $sql =~ /\$2/ ? (payload(), 0) : (payload());
	my $once = sub { $bind[1] = 1 + int(rand(1000)) if @bind > 1; $sth->execute(@bind); $sth->finish };

	# The plan, and the catalogs' caches.
	$once->() for 1 .. 100;
	my $wal = value('SELECT pg_current_wal_insert_lsn()');
	my $us = $cpu->();
	$once->() for 1 .. $n;
	$us = $cpu->() - $us;
	$wal = value('SELECT pg_current_wal_insert_lsn() - $1::pg_lsn', $wal);
	$session->disconnect;
	throw_away($name);
	return { us => $us / $n, wal => $wal / $n };
}

measure('3 5', 'cost', sub {
	setup_enqueue();
	my $got = alternate('cost of an enqueue', map { my ($name, @peer) = @$_; [ $name => sub { cost($name) }, @peer ] }
		['base'], ['ours'], map { [ $_, $_ ] } @peers);
	compare('3', "CPU time of an enqueue's backend, to INSERT's", $got, 'ours us', 'base us', '<= 1.05');
	compare('3', "  $_", $got, "$_ us", 'base us', undef) for @peers;
	row('3', '  INSERT: microseconds', undef, @{ $got->{'base us'} });
	compare('5', "bytes of WAL of an enqueue, to INSERT's", $got, 'ours wal', 'base wal', '<= 1.02');
	compare('5', "  $_", $got, "$_ wal", 'base wal', undef) for @peers;
	row('5', '  INSERT: bytes', undef, @{ $got->{'base wal'} });
});

# A thousand rows in one statement: rows a second.
sub many
{
	my ($sql, $name) = @_;
	my $tps = pgbench("$sql;\n", seconds => full(2, 1))->{tps};
	throw_away($name);
	return $tps * 1000;
}

measure('4', 'many', sub {
	setup_enqueue();
	my $from = 'FROM generate_series(1, 1000) n';
	my $got = alternate('1,000 in one statement',
		[ base => sub { many(qq(INSERT INTO base (queue, task_type, payload, group_id)
			SELECT 'default', 'bench', :payload, 'g' || n $from), 'base') } ],
		[ list => sub { many(qq(SELECT count(taskoutbox.enqueue('bench', :payload::jsonb, 'g' || n)) $from), 'ours') } ],
		[ lateral => sub { many(qq(SELECT count(e.id) $from, LATERAL taskoutbox.enqueue('bench', :payload::jsonb, 'g' || n) e), 'ours') } ],
		[ PgQ => sub { many(qq(SELECT count(pgq.insert_event('bench', 'bench', :payload)) $from), 'PgQ') }, 'PgQ' ],
		[ 'graphile-worker' => sub { many(qq(SELECT count(graphile_worker.add_job('bench', :payload::json)) $from), 'graphile-worker') }, 'graphile-worker' ]);
	compare('4', "1,000 in one statement, select list: rows/s to INSERT ... SELECT's", $got, 'list', 'base', '>= 1.00');
	compare('4', '1,000 in one statement, LATERAL', $got, 'lateral', 'base', '>= 0.85');
	compare('4', "  $_, select list", $got, $_, 'base', undef) for 'PgQ', 'graphile-worker';
	row('4', '  INSERT ... SELECT: rows/s', undef, @{ $got->{base} });
});

1;
