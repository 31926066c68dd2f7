# A row is delivered soon after its commit, whatever brought it in: the median of
# 200, from the return of the commit to the return of a receive that waited, on the
# client's clock.  A sanity check, not a benchmark.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IO::Select;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $n = 200;
my $limit = .050;

my $node = new_node('delivery');
my $producer = session($node);
my $consumer = session($node);
my $watch = session($node);

# Somebody else's transaction is open all the time, with a snapshot and an xid (case
# C03): it must not matter.
my $foreign = session($node);
$foreign->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
$foreign->do('SELECT pg_current_xact_id()');

my $receive = q(SELECT * FROM taskoutbox.receive(wait => '20 s'));
my $select = IO::Select->new;
$select->add($consumer->{pg_socket});

# One row: $prepare is everything up to the commit, $commit makes it visible and
# returns the id.
sub latencies
{
	my ($prepare, $commit) = @_;
	my (@took, $wrong);

	for (1 .. $n)
	{
		$prepare->();
		my $query = start_query($consumer, $receive);
		wait_until_waiting($watch, backend_pid($consumer));
		my $id = $commit->();
		my $start = mono();
		$select->can_read(30) or die 'nothing was delivered';
		push @took, mono() - $start;
		my ($m) = wait_query($query);
		$wrong++ if !$m || (defined $id && $m->{id} != $id);
		value($consumer, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle}) if $m;
	}
	die 'wrong messages' if $wrong;
	return sort { $a <=> $b } @took;
}

sub check
{
	my ($what, $prepare, $commit) = @_;
	my @took = eval { latencies($prepare, $commit) } or do
	{
		fail("$what: $@");
		return;
	};
	my ($p50, $p99) = @took[ $n / 2, $n * .99 ];
	cmp_ok($p50, '<', $limit, "$what: median within 50 ms");
	diag(sprintf('%s: p50 %.2f ms, p99 %.2f ms', $what, 1000 * $p50, 1000 * $p99));
	return;
}

my $nothing = sub { };

# Nobody deletes what the check of one way in left: each starts with an empty outbox.
my $group = sub { return 'g' . int(rand 20) };

check('enqueue, autocommit', $nothing, sub { enqueue($producer, $group->()) });

check('enqueue without a group', $nothing, sub { enqueue($producer, undef) });

my $id;
check(
	'enqueue in a transaction',
	sub {
		$producer->do('BEGIN');
		$id = enqueue($producer, $group->());
	},
	sub { $producer->do('COMMIT'); $id });

my $other = session($node);
my $gid = 0;
check(
	'COMMIT PREPARED in another session',
	sub {
		$producer->do('BEGIN');
		$id = enqueue($producer, $group->());
		$producer->do("PREPARE TRANSACTION 'p" . ++$gid . q('));
	},
	sub { $other->do("COMMIT PREPARED 'p$gid'"); $id });

check(
	'COPY by the owner',
	$nothing,
	sub {
		$producer->do('COPY taskoutbox.task_outbox (task_type, group_id) FROM STDIN');
		$producer->pg_putcopydata("test\tg" . int(rand 20) . "\n");
		$producer->pg_putcopyend;
		return undef;
	});

check(
	'INSERT by the owner',
	$nothing,
	sub {
		value($producer, q(INSERT INTO taskoutbox.task_outbox (task_type, group_id)
			VALUES ('test', $1) RETURNING id), $group->());
	});

$producer->do('SET synchronous_commit = off');
check('enqueue with synchronous_commit = off', $nothing, sub { enqueue($producer, $group->()) });

is(value($watch, 'SELECT count(*) FROM taskoutbox.task_outbox'), 0, 'everything was delivered and deleted');
$foreign->do('COMMIT');

done_testing();
