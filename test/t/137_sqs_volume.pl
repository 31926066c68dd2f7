# Much is published, with errors, and much waits while SQS is down: the relay keeps its
# bounds of memory and of connections, and then drains steadily, each group oldest first.
#
# TASKOUTBOX_PUBLISHES: how many, a tenth of the requests fails (default 20000; 0: none)
# TASKOUTBOX_BACKLOG: how many wait while SQS is down (default 20000; 0: none)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FakeSqs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SqsTest;
use TaskoutboxTest;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => FakeSqs::missing() if FakeSqs::missing();

my $publishes = $ENV{TASKOUTBOX_PUBLISHES} // 20_000;
my $backlog = $ENV{TASKOUTBOX_BACKLOG} // 20_000;
note "TASKOUTBOX_PUBLISHES=$publishes TASKOUTBOX_BACKLOG=$backlog";

# So small that the rows do not fit.
my $memory = $backlog > 1_000_000 ? 16 * 1024 : 1024;
my $connections = 8;
my ($sqs, $node) = new_sqs_node('sqs_volume', fake => { verify => 0, log => undef }, conf => qq(
synchronous_commit = off
fsync = off
max_wal_size = '4GB'
shared_buffers = '512MB'
taskoutbox.relay_memory = '${memory}kB'
taskoutbox.request_timeout = '30s'
));
my $dbh = session($node);
my $producer = session($node);

sub rss
{
	my $pid = relay_pid($dbh);
	my ($kb) = slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+)/m;
	return $kb;
}

# Connections of the relay to the fake that are there now.
sub sockets
{
	my $pid = relay_pid($dbh);
	my $port = sprintf('%04X', $sqs->port);
	my %inode;

	open my $tcp, '<', "/proc/$pid/net/tcp" or die $!;
	while (<$tcp>)
	{
		my @f = split;
		$inode{ $f[9] } = 1 if $f[2] =~ /:$port$/;
	}
	return scalar(grep { /^socket:\[(\d+)\]$/ && $inode{$1} } map { readlink($_) // '' } glob("/proc/$pid/fd/*"));
}

sub accepted
{
	my ($queue) = @_;
	return $sqs->queue("$queue.fifo")->{accepted};
}

# What came is 1 to $many, once, and in order in each of the groups.
sub all_came
{
	my ($queue, $many, $groups) = @_;
	my (@seen, %last);
	my ($twice, $late) = (0, 0);

	open my $lines, '<', \$sqs->copy('accepted', "$queue.fifo", 'body') or die $!;
	while (my $n = <$lines>)
	{
		$twice++ if $seen[$n]++;
		$late++ if $n < ($last{ $n % $groups } || 0);
		$last{ $n % $groups } = $n;
	}
	is(scalar(grep { $seen[$_] } 1 .. $many), $many, "$queue: all came");
	is($twice, 0, "$queue: none was accepted twice");
	is($late, 0, "$queue: each group oldest first");
	return;
}

# As long as not too many wait: this is about what was published, not about what waits.
$dbh->do(q{
	CREATE PROCEDURE produce(queue text, many integer, groups integer) LANGUAGE plpgsql AS $$
	BEGIN
		FOR done IN 0 .. many - 1 BY 1000 LOOP
			PERFORM taskoutbox.enqueue('test', to_jsonb(n), queue => produce.queue, group_id => 'g' || n % groups)
			FROM generate_series(done + 1, least(done + 1000, many)) n;
			COMMIT;
			WHILE (SELECT waiting > 4000 FROM taskoutbox.queue_metrics m WHERE m.queue = produce.queue) LOOP
				PERFORM pg_sleep(.01);
			END LOOP;
		END LOOP;
	END $$});

if ($publishes)
{
	sqs_queue($dbh, $sqs, 'volume', max_connections => $connections);
	my %fault = (op => 'SendMessageBatch', queue => 'volume.fifo');
	my @faults = map { $sqs->plant(%fault, %$_) } (
		{ do => 'error', code => 'InternalFailure', status => 500, p => .03 },
		{ do => 'error', code => 'InternalFailure', status => 500, when => 'after', p => .01 },
		{ do => 'error', code => 'RequestThrottled', status => 403, p => .01 },
		{ do => 'drop', how => 'reset', p => .02 },
		{ do => 'drop', when => 'after', p => .01 },
		{ do => 'entry', entries => [ 0, 5 ], code => 'InternalError', sender_fault => \0, p => .02 });
	my $start = mono();
	my $call = start_query($producer, 'CALL produce($1, $2::int, $3::int)', 'volume', $publishes, 2000);
	my $first = $publishes >= 1_000_000 ? 50_000 : $publishes / 4;
	my ($before, $most, $samples, $told) = (undef, 0, 0, 0);

	my $done = poll(sub {
		my $n = sockets();
		$most = $n if $n > $most;
		$samples++;
		my $delivered = metrics($dbh, 'volume')->{delivered};
		$before //= rss() if $delivered >= $first;
		if ($delivered >= $told + 100_000)
		{
			$told = $delivered;
			note sprintf('%d published, RssAnon %d kB, %d sockets', $delivered, rss(), $n);
		}
		usleep(20_000);
		return $delivered >= $publishes;
	}, 7200);
	ok($done, 'volume: all published');
	my $seconds = mono() - $start;
	wait_query($call);
	ok(outbox_is_empty($dbh, 'volume'), 'volume: nothing is left');
	my $after = rss();
	my $requests = scalar(my @all = $sqs->requests(op => 'SendMessageBatch'));
	my $hits = $sqs->hits;
	note sprintf('%d in %.0f s, %d a second; %d of %d requests failed', $publishes, $seconds, $publishes / $seconds, $hits, $requests);
	note "RssAnon $before kB after $first, $after kB in the end; at most $most sockets in $samples looks";
	cmp_ok($hits, '>', $requests * .07, 'volume: a tenth of the requests failed');
	cmp_ok($after, '<=', $before * 1.1, 'volume: memory is flat');
	cmp_ok($most, '>', 0, 'volume: connections were seen');
	cmp_ok($most, '<=', $connections, 'volume: never more than max_connections');
	is(metrics($dbh, 'volume')->{dead}, 0, 'volume: none is dead');
	$sqs->clear;
	all_came('volume', $publishes, 2000);
}

if ($backlog)
{
	my $groups = 1000;
	sqs_queue($dbh, $sqs, 'pile', max_connections => $connections, retry_cap => '1 s');
	ok(poll(sub { metrics($dbh, 'pile')->{sqs_looked_at} }), 'pile: worked before');
	my $base = rss();
	my $offset = -s $node->logfile;
	my $fault = $sqs->plant(queue => 'pile.fifo', do => 'error', code => 'ServiceUnavailable', status => 503);

	$dbh->do(q{SELECT count(taskoutbox.enqueue('test', to_jsonb(n), queue => 'pile', group_id => 'g' || n % $2::int)) FROM generate_series(1, $1::int) n},
		undef, $backlog, $groups);
	my $row = problem_is($dbh, 'pile', qr/ServiceUnavailable/);
	ok($row, 'pile: it is known that SQS is down');
	ok(poll(sub { my $m = metrics($dbh, 'pile'); $m->{waiting} + $m->{in_flight} == $backlog }, 600), 'pile: and how many wait');
	my $hits = $sqs->hits($fault);
	ok(poll(sub { $sqs->hits($fault) > $hits + 5 }), 'pile: it is tried again');
	my $bytes = value($dbh, q(SELECT memory_bytes FROM taskoutbox.relay_status WHERE database = 'postgres'));
	my $rss = rss();
	note "RssAnon $base kB before, $rss kB while $backlog wait; the relay says $bytes bytes of $memory kB";
	cmp_ok($bytes, '<=', $memory * 1024, 'pile: what waits takes no more than relay_memory');
	cmp_ok($rss - $base, '<', 1.5 * $memory + 4096, 'pile: nor does the process grow by much more');
	is(metrics($dbh, 'pile')->{dead}, 0, 'pile: none is dead');

	$sqs->clear;
	my $start = mono();
	my ($last, $last_at, $pause, @tenths) = (0, $start, 0);
	my $drained = poll(sub {
		my $n = accepted('pile');
		my $now = mono();
		if ($n > $last)
		{
			($last, $last_at) = ($n, $now);
		}
		$pause = $now - $last_at if $now - $last_at > $pause;
		push @tenths, $now - $start while @tenths < int(10 * $n / $backlog);
		usleep(50_000);
		return $n >= $backlog;
	}, 7200);
	my $seconds = mono() - $start;
	ok($drained, 'pile: drained');
	my @took = map { $tenths[$_] - ($_ ? $tenths[ $_ - 1 ] : 0) } 0 .. $#tenths;
	note sprintf('%d in %.1f s, %d a second; seconds of each tenth: %s; the longest pause: %.2f s', $backlog, $seconds,
		$backlog / $seconds, join(' ', map { sprintf '%.1f', $_ } @took), $pause);
	cmp_ok($pause, '<', 5, 'pile: steadily');
	my ($slowest) = sort { $b <=> $a } @took;
	cmp_ok($slowest, '<', 4 * $seconds / 10 + 2, 'pile: no tenth takes much longer than others');
	ok(outbox_is_empty($dbh, 'pile'), 'pile: nothing is left');
	note 'RssAnon ' . rss() . ' kB in the end';
	cmp_ok(rss() - $base, '<', 1.5 * $memory + 4096, 'pile: memory keeps its bound');
	all_came('pile', $backlog, $groups);
	my $log = log_of($node, $offset);
	is(scalar(() = $log =~ /queue "pile" is stopped: .*ServiceUnavailable/g), 1, 'pile: one line in the log for all of it');
	like($log, qr/queue "pile" goes on/, 'pile: and one when it goes on');
}
unlike(log_of($node), qr/PANIC|relay (?:ERROR|FATAL):  (?!terminating)/, 'no error of a relay');

done_testing();
