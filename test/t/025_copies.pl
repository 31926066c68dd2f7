# Copies of a database: a dump has all that is the user's exactly once, and nothing
# else; what is restored delivers nothing by itself until it is confirmed.  Cases
# C04, C60, C61.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $conf = "max_worker_processes = 30\n";
my $node = new_node('origin', conf => $conf);
my $dbh = session($node);
my $dir = PostgreSQL::Test::Utils::tempdir();

one_of_each($dbh);
my ($held) = receive($dbh, wait => '5 s');
my ($counted) = receive($dbh, max => 1);

my $original = contents($dbh);
is(() = $original =~ /^task /mg, 23, 'there is something to lose');

sub dump_to
{
	my ($file, @options) = @_;
	my ($out, $err);
	my $ok = IPC::Run::run([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-f', "$dir/$file", @options, 'postgres' ], '>', \$out, '2>', \$err);
	ok($ok && $err eq '', "pg_dump @options") or diag($err);
	return "$dir/$file";
}

sub run_ok
{
	my ($what, @command) = @_;
	my ($out, $err);
	my $ok = IPC::Run::run(\@command, '>', \$out, '2>', \$err);
	$err =~ s/^.*WARNING:  task is stored, but nothing delivers it.*\nHINT:.*\n// if $what =~ /without preloading/;
	ok($ok && $err eq '', $what) or diag($err);
	return;
}

# Into another cluster, as a plain text, custom, and in parallel
my $copy = new_node('copy', conf => $conf, extension => 0);
my @to = ('-h', $copy->host, '-p', $copy->port);
my %how = (
	plain => sub { my ($db, $file) = @_; run_ok('psql', 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', @to, '-d', $db, '-o', '/dev/null', '-f', $file) },
	custom => sub { my ($db, $file) = @_; run_ok('pg_restore', 'pg_restore', '-e', @to, '-d', $db, $file) },
	parallel => sub { my ($db, $file) = @_; run_ok('pg_restore -j', 'pg_restore', '-e', '-j', '4', @to, '-d', $db, $file) });
my %options = (plain => ['-Fp'], custom => ['-Fc'], parallel => [ '-Fd', '-j', '2' ]);
my $admin = session($copy);

for my $kind (sort keys %how)
{
	my $file = dump_to($kind, @{ $options{$kind} });
	$admin->do("CREATE DATABASE $kind");
	$how{$kind}->($kind, $file);
	wait_for_relay($copy, $kind);
	my $c = session($copy, dbname => $kind);
	is(contents($c), $original, "$kind: all is there, once");

	# It says that it is a copy, and gives out what is asked for.
	ok(poll(sub { my ($s) = rows($c, q(SELECT confirmed, hint FROM taskoutbox.relay_status WHERE database = current_database()));
			return defined $s->{confirmed} && !$s->{confirmed} && $s->{hint} =~ /is a copy/ }), "$kind: it says that it is a copy");
	is(scalar(receive($c, queue => 'once')), 0, "$kind: the blocked group waits");
	is(scalar(receive($c, queue => 'paused')), 0, "$kind: the paused queue is paused");
	my @m = receive($c, max => 5, wait => '5 s');
	is(ids(@m), join(' ', map { $held->{id} + $_ } 0 .. 4), "$kind: in the old order, those in flight first");
	$c->do('SELECT taskoutbox.confirm()');
	ok(poll(sub { value($c, q(SELECT confirmed FROM taskoutbox.relay_status WHERE database = current_database())) }), "$kind: confirmed");
	is(value($c, q(SELECT duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'd1'))), 1, "$kind: ids are taken");
	my ($last) = $original =~ /^sequence (\d+)/m;
	is(value($c, q(SELECT id FROM taskoutbox.enqueue('new'))) - $last, 2, "$kind: ids go on where they were");
	is(value($c, q(SELECT count(*) FROM pg_depend WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass)) > 0, 1, "$kind: the objects are the extension's");
	$c->disconnect;
}
like(slurp_file($copy->logfile), qr/database "plain" is a copy, and delivers nothing by itself/, 'the log says so, too');

# Data alone, into an extension that is there; and the schema alone has none.
my $data = dump_to('data', '-Fp', '--data-only');
$admin->do('CREATE DATABASE data');
my $c = session($copy, dbname => 'data');
$c->do('CREATE EXTENSION taskoutbox');
wait_for_relay($copy, 'data');
$how{plain}->('data', $data);
is(contents($c), $original, 'data only: all is there, once');
is(scalar(my @m = receive($c, max => 10, wait => '5 s')), 10, 'and comes to who asks for it');
$c->disconnect;

my $schema = dump_to('schema', '-Fp', '--schema-only');
$admin->do('CREATE DATABASE schema');
$how{plain}->('schema', $schema);
$c = session($copy, dbname => 'schema');
is(value($c, q(SELECT (SELECT count(*) FROM taskoutbox.task_outbox) + (SELECT count(*) FROM taskoutbox.dead_letter)
	+ (SELECT count(*) FROM taskoutbox.queue) + (SELECT count(*) FROM taskoutbox.deduplication) + (SELECT count(*) FROM taskoutbox.installation_pin))), 0, 'schema only: nothing');
is(value($c, q(SELECT id FROM taskoutbox.enqueue('x'))), 1, 'and ids from the start');
$c->disconnect;

# Of a copy of a copy
my $again = "$dir/again";
run_ok('pg_dump of a copy', 'pg_dump', @to, '-Fc', '-f', $again, 'plain');
$admin->do('CREATE DATABASE again');
run_ok('pg_restore', 'pg_restore', '-e', @to, '-d', 'again', $again);
$c = session($copy, dbname => 'again');
my ($uuid) = $original =~ /^installation (\S+)/m;
is(value($c, 'SELECT id FROM taskoutbox.installation ORDER BY created_at LIMIT 1'), $uuid, 'the id of the installation is the first one, however often it was copied');
wait_for_relay($copy, 'again');
ok(poll(sub { defined value($c, q(SELECT confirmed FROM taskoutbox.relay_status WHERE database = current_database())) }), 'its relay knows');
is(value($c, q(SELECT confirmed FROM taskoutbox.relay_status WHERE database = current_database())), 0, 'and it is a copy again');
$c->disconnect;

# Restored into a server without the library preloaded, it can be read.
my $plain = PostgreSQL::Test::Cluster->new('without');
$plain->init;
$plain->start;
run_ok('psql into a server without preloading', 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-h', $plain->host, '-p', $plain->port, '-d', 'postgres', '-o', '/dev/null', '-f', "$dir/plain");
is(contents(session($plain)), $original, 'all is there, too');

done_testing();
