# Quiet and harmless while there is nothing to do: no statements and no CPU time
# when idle (cases C64, P11), no transaction and no snapshot while a receive waits
# (C51, P7), and a state in pg_stat_activity (C53).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;
use Time::HiRes qw(usleep);

my $idle_seconds = 60;
my $ticks = POSIX::sysconf(POSIX::_SC_CLK_TCK());

# autovacuum is off because its workers' transactions would be counted as ours.
my $node = new_node('idle', conf => q(
shared_preload_libraries = 'pg_stat_statements, taskoutbox'
pg_stat_statements.track = all
pg_stat_statements.track_planning = off
autovacuum = off
log_statement = all
));
my $dbh = session($node);
$dbh->do('CREATE EXTENSION pg_stat_statements');

# CPU time of a process, in seconds.
sub cpu
{
	my ($pid) = @_;
	my $stat = slurp_file("/proc/$pid/stat");
	my @f = split ' ', ($stat =~ s/^.*\) //sr);
	return ($f[11] + $f[12]) / $ticks;
}

# Times that a process went to sleep by itself.
sub sleeps
{
	my ($pid) = @_;
	my ($n) = slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	return $n;
}

# Something is there, but nothing to do: rows that nobody asks for, one message in
# flight.
enqueue($dbh, "g$_") for 1 .. 10;
is(scalar(receive($dbh, vt => '12 h', wait => '2 s')), 1, 'one message is in flight');

my %worker = (relay => relay_pid($dbh), launcher => launcher_pid($dbh));

#
# While a receive waits
#

my $consumer = session($node);
my $activity = q(SELECT backend_type, state, wait_event_type, wait_event, backend_xid, backend_xmin, xact_start, query_start
	FROM pg_stat_activity WHERE backend_type ~ '^taskoutbox');
$consumer->do(q(SELECT taskoutbox.create_queue('empty')));
my $start = mono();
my $query = start_query($consumer, q(SELECT * FROM taskoutbox.receive('empty', wait => '20 s')));
wait_until_waiting($dbh, backend_pid($consumer));

my ($samples, @held, %state) = (0);
until (query_ready($query))
{
	for my $r (rows($dbh, $activity))
	{
		$samples++;
		push @held, $r->{backend_type} if grep { defined $r->{$_} } qw(backend_xid backend_xmin xact_start);
		$state{ join ' ', $r->{backend_type}, $r->{state} // 'no state', $r->{wait_event_type} // 'no wait event' }++;
	}
	# how often to look, not how long to wait
	usleep(50_000);
}
is(scalar(wait_query($query)), 0, 'a receive of 20 s got nothing');
my $took = mono() - $start;
ok($took >= 19.9 && $took < 22, "and took 20 s ($took)");
cmp_ok($samples, '>', 400, 'sampled all the while');
is("@held", '', 'relay and launcher held no snapshot, no xid and no transaction meanwhile');

# Waiting is all that they were ever seen to do, and they say so.
for my $w (qw(relay launcher))
{
	my $n = $state{"taskoutbox $w idle Extension"} || 0;
	cmp_ok($n, '>', $samples * .45, "the $w shows as idle, waiting in Extension")
	  or diag(explain(\%state));
}
is_deeply({ relay => relay_pid($dbh), launcher => launcher_pid($dbh) }, \%worker, 'nobody was restarted');

#
# Idle
#

# Statements of other sessions than this one are counted by pg_stat_statements,
# which sees SPI too; transactions by the database's counter.  This session's own
# are known: each value() is one.
my $statements = q(SELECT coalesce(sum(calls), 0) FROM pg_stat_statements);
my $transactions = q(SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres');

# Counters are reported with a delay of up to a second by a session that goes idle:
# wait until this one's are, so that only the pause counts.
$consumer->disconnect;
my $last = -1;
ok( poll(
		sub {
			my $now = value($dbh, $transactions);
			my $same = $now == $last;
			$last = $now;
			usleep(1_500_000) unless $same;
			$same || $now - $last <= 1;
		}),
	'counters are up to date');
my %cpu = map { $_ => cpu($worker{$_}) } keys %worker;
my %sleeps = map { $_ => sleeps($worker{$_}) } keys %worker;
value($dbh, 'SELECT pg_stat_statements_reset()');
my $xacts = value($dbh, $transactions);
my $offset = -s $node->logfile;

# The idle time itself.
usleep($idle_seconds * 1_000_000);

my $calls = value($dbh, $statements);
my $more = value($dbh, $transactions) - $xacts;
my $logged = () = slurp_file($node->logfile, $offset) =~ /^.* taskoutbox (?:relay|launcher) .*LOG:  (?:statement|execute)/mg;
# Ours before the idle time: the reset itself (not counted after its own reset or
# once), the counter; the one that asked is not there yet.
cmp_ok($calls, '<=', 2 + 2, "at most 2 statements while idle for $idle_seconds s ($calls seen, 2 of them the test's)");
cmp_ok($more, '<=', 2 + 3, "at most 2 transactions ($more seen, up to 3 of them the test's)");
cmp_ok($logged, '<=', 2, 'at most 2 in the log');
my $used = 0;
for my $w (sort keys %worker)
{
	my $c = cpu($worker{$w}) - $cpu{$w};
	my $n = sleeps($worker{$w}) - $sleeps{$w};
	$used += $c;
	diag("$w: $c s of CPU time and $n wake-ups in $idle_seconds s");
	cmp_ok($n, '<=', 5 * $idle_seconds, "the $w wakes up rarely");
}
cmp_ok($used, '<', .002 * $idle_seconds, "under 0.2 % CPU: $used s");
is_deeply({ relay => relay_pid($dbh), launcher => launcher_pid($dbh) }, \%worker, 'nobody was restarted');

# It was idle, not dead.
my $id = enqueue($dbh, 'g99', '{}', 'empty');
is(ids(receive($dbh, queue => 'empty', wait => '2 s')), $id, 'and still at work');

done_testing();
