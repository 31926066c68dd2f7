# Ten databases at once, with too few worker slots for a while (C39), and a stop of
# the server while a synchronous standby is missing (C54).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

# The launcher, logical replication's launcher and six relays
my $node = new_node('many', extension => 0, init => [ allows_streaming => 1 ], conf => qq(
max_worker_processes = 8
max_parallel_workers = 0
));
my $admin = session($node);
my @names = map { "d$_" } 1 .. 10;
my %dbh;
for my $name (@names)
{
	$admin->do("CREATE DATABASE $name");
	$dbh{$name} = session($node, dbname => $name);
	$dbh{$name}->do('CREATE EXTENSION taskoutbox');
	value($dbh{$name}, q(SELECT count(taskoutbox.enqueue('x')) FROM generate_series(1, 10)));
}
$admin->do('CREATE EXTENSION taskoutbox');

sub states
{
	my (%n);
	$n{ $_->{state} }++ for rows($admin, q(SELECT state FROM taskoutbox.relay_status WHERE database LIKE 'd%'));
	return \%n;
}

# As many as fit deliver; the others say why they do not, and the log says it once.
ok(poll(sub { my $n = states(); ($n->{running} // 0) >= 4 && ($n->{stopped} // 0) >= 4 && !$n->{starting} }, 30), 'as many relays as there are slots run');
my ($stopped) = rows($admin, q(SELECT database, hint FROM taskoutbox.relay_status WHERE state = 'stopped' AND database LIKE 'd%' LIMIT 1));
like($stopped->{hint}, qr/max_worker_processes/, 'the status of another one names the remedy');
my @running = map { $_->{database} } rows($admin, q(SELECT database FROM taskoutbox.relay_status WHERE state = 'running' AND database LIKE 'd%'));
is(join(' ', grep { receive($dbh{$_}, max => 10, wait => '5 s') != 10 } @running), '', 'those that run deliver');
is(state_of($dbh{ $stopped->{database} }, q(SELECT taskoutbox.enqueue('x'))), '00000', 'where none runs tasks are accepted');
my $lines = () = slurp_file($node->logfile) =~ /no free background worker slot/g;
cmp_ok($lines, '>=', 1, 'the log says it');
my $waited = mono();
poll(sub { mono() > $waited + 6 });
is((() = slurp_file($node->logfile) =~ /no free background worker slot/g), $lines, 'and not again and again');

# One goes, and makes room for another one.
my $gone = shift @running;
$dbh{$gone}->do('DROP EXTENSION taskoutbox');
ok(poll(sub { value($admin, q(SELECT count(*) FROM taskoutbox.relay_status WHERE state = 'running' AND database LIKE 'd%')) >= @running + 1 }, 30),
	'a slot that gets free is used');

# With enough slots all ten deliver at once.
$_->disconnect for values %dbh, $admin;
$node->append_conf('postgresql.conf', "max_worker_processes = 20\n");
$node->restart;
$admin = session($node);
%dbh = map { $_ => session($node, dbname => $_) } @names;
$dbh{$gone}->do('CREATE EXTENSION taskoutbox');
wait_for_relay($node, $_) for @names;
my %waiting = map { my $name = $_; receive($dbh{$name}, max => 100);
	($name => start_query($dbh{$name}, q(SELECT task_type FROM taskoutbox.receive(wait => '20 s')))) } @names;
my %producer = map { $_ => session($node, dbname => $_) } @names;
value($producer{$_}, q(SELECT id FROM taskoutbox.enqueue($1)), "task of $_") for @names;
is(join(' ', grep { (wait_query($waiting{$_}))[0]{task_type} ne "task of $_" } @names), '', 'all ten deliver, each its own');
is(value($admin, q(SELECT count(*) FROM taskoutbox.relay_status WHERE state = 'running')), 11, 'relay_status shows each');

# C54: commits wait for a standby that is not there; the relay writes, and does not.
$admin->do(q(ALTER SYSTEM SET synchronous_standby_names = 'nobody'));
$admin->do('SELECT pg_reload_conf()');
ok(poll(sub { value($admin, 'SHOW synchronous_standby_names') eq 'nobody' }), 'a synchronous standby is missing');
my $producer = session($node, dbname => 'd1');
# (the checkpointer tells the others)
my $commit;
ok(poll(sub {
		if (!defined $commit || query_ready($commit))
		{
			wait_query($commit) if defined $commit;
			$commit = start_query($producer, q(SELECT id FROM taskoutbox.enqueue('waits')));
		}
		return value($admin, q(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep')) == 1;
	}, 30), 'the producer waits for it');
my $last = value($admin, q(SELECT backend_xid FROM pg_stat_activity WHERE wait_event = 'SyncRep'));
ok(defined $last, 'and its commit is open');
my $start = mono();
$node->stop('fast');
my $took = mono() - $start;
note("stopped after $took s");
cmp_ok($took, '<', 20, 'a fast stop does not wait for the standby');

done_testing();
