# A random run against an SQS that fails in every way: each task is accepted at least
# once, a second time only under the same deduplication id (so SQS dropped it), each
# group in order, and the dead letters are exactly the poison.  The relay is
# terminated and the server killed now and then.  Cases C06, C07, C08, C09, C22, C75.
#
# TASKOUTBOX_SEED repeats a run's choices, TASKOUTBOX_SECONDS makes it longer.

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

my $seconds = $ENV{TASKOUTBOX_SECONDS} || 30;
my $seed = $ENV{TASKOUTBOX_SEED} || int(rand(1_000_000));
srand($seed);
note "TASKOUTBOX_SEED=$seed TASKOUTBOX_SECONDS=$seconds";

my ($sqs, $node) = new_sqs_node('sqs_faults', conf => q(
taskoutbox.request_timeout = '1s'
synchronous_commit = on
fsync = on
));
my $dbh = session($node);
my @queues = ('plain', 'batching');
sqs_queue($dbh, $sqs, 'plain', max_connections => 8);
sqs_queue($dbh, $sqs, 'batching', group_batching => 'true');

# "partial" reorders what is in one request of a group, which group_batching accepts
my @harmless = qw(transient throttle connection answer);
my @faults = (
	$sqs->chaos(p => .004, seed => $seed, queue => 'plain.fifo', kinds => [ @harmless, 'partial', 'destination', 'credentials' ]),
	$sqs->chaos(p => .004, seed => $seed + 1, queue => 'batching.fifo', kinds => \@harmless),
	$sqs->plant(op => 'SendMessageBatch', do => 'delay', seconds => 2, p => .01));
$sqs->plant(op => 'SendMessageBatch', do => 'entry', body => 'poison', code => 'InvalidMessageContents', sender_fault => \1);

my (%sent, %poison);
my $n = 0;
my ($terminations, $kills) = (0, 0);
my $end = mono() + $seconds;
my $next_termination = mono() + 2 + rand(4);
my $next_kill = mono() + 6 + rand(6);

# A transaction with some tasks, many of them of few groups; some are rolled back.
sub put_some
{
	my $queue = $queues[ rand @queues ];
	my @now;

	$dbh->begin_work;
	for (1 .. 1 + rand(20))
	{
		my $is_poison = rand() < .005;
		my $group = rand() < .2 ? undef : 'g' . int(rand(15));
		my $body = ++$n;
		$body = qq("poison $body") if $is_poison;
		push @now, [ $queue, enqueue($dbh, $group, $body, $queue), $group, $n, $is_poison ];
	}
	if (rand() < .05)
	{
		$dbh->rollback;
		return;
	}
	# What a crash leaves open is known by what is in the table then.
	my $ok = eval { $dbh->commit; 1 };
	for my $t (@now)
	{
		my ($q, $id, $group, $number, $is_poison) = @$t;
		$sent{$q}{$number} = { id => $id, group => $group, certain => $ok, poison => $is_poison };
	}
	return;
}

while (mono() < $end)
{
	if (mono() > $next_kill)
	{
		crash($node);
		$kills++;
		$dbh = session($node);
		$next_kill = mono() + 6 + rand(10);
	}
	elsif (mono() > $next_termination)
	{
		my $pid = eval { relay_pid($dbh) };
		$terminations += value($dbh, 'SELECT pg_terminate_backend($1)', $pid) if $pid;
		$next_termination = mono() + 2 + rand(5);
	}
	eval { put_some(); 1 } or do {
		note $@;
		$dbh = session($node);
	};
	usleep(rand(20_000));
}

# The end: nothing fails any more, but for the poison.
$sqs->clear(@faults);
# Poison alone would look like a misconfiguration.
my $drained = poll(
	sub {
		for my $queue (@queues)
		{
			my $group = 'last' . rand();
			$n++;
			$sent{$queue}{$n} = { id => enqueue($dbh, $group, $n, $queue), group => $group, certain => 1 };
		}
		usleep(100_000);
		return value($dbh, 'SELECT count(*) FROM taskoutbox.task_outbox') <= 2;
	}, 60);
ok($drained, 'drained') or diag explain [ rows($dbh, 'SELECT * FROM taskoutbox.queue_metrics') ];
ok(outbox_is_empty($dbh, $_, 20), "$_: nothing is left") for @queues;
note "$n tasks, $terminations terminations of the relay, $kills crashes";

for my $queue (@queues)
{
	my $sent = $sent{$queue};
	my @accepted = $sqs->accepted("$queue.fifo", 'body', 'group', 'dedup', 'seq');
	my @duplicates = $sqs->duplicates("$queue.fifo");
	my (%seen, @lost, @twice, @strange, @disorder, %last, %by_dedup);

	# Concurrent transactions there are none, so order is that of the calls.
	for my $m (@accepted)
	{
		my $task = $sent->{ $m->{body} };
		push @strange, $m->{body} unless $task;
		push @twice, $m->{body} if $seen{ $m->{body} }++;
		$by_dedup{ $m->{dedup} } = $m->{body};
		next unless $task && defined $task->{group};
		push @disorder, "$m->{body} after $last{ $task->{group} }" if ($last{ $task->{group} } || 0) > $m->{body};
		$last{ $task->{group} } = $m->{body};
	}
	push @lost, grep { $sent->{$_}{certain} && !$sent->{$_}{poison} && !$seen{$_} } keys %$sent;
	is("@lost", '', "$queue: all arrived");
	is("@twice", '', "$queue: none was accepted twice");
	is("@strange", '', "$queue: none came that was not committed");
	is("@disorder", '', "$queue: each group in order");
	is(scalar(grep { !exists $by_dedup{ $_->{dedup} } || $by_dedup{ $_->{dedup} } ne $_->{body} } @duplicates), 0,
		"$queue: what was sent again, was under the same id");
	note scalar(@accepted) . ' accepted, ' . scalar(@duplicates) . ' sent again';

	my @dead = map { $_->{id} } rows($dbh, 'SELECT id FROM taskoutbox.dead_letter WHERE queue = $1 ORDER BY id', $queue);
	my @poison = sort { $a <=> $b } map { $_->{id} } grep { $_->{poison} && $_->{certain} } values %$sent;
	is("@dead", "@poison", "$queue: the dead letters are the poison");
}
is(value($dbh, 'SELECT count(*) FROM taskoutbox.in_flight'), 0, 'nothing is in flight any more');
unlike(log_of($node), qr/PANIC|relay ERROR/, 'no error of a relay in the log');

done_testing();
