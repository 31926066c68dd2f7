# One session that enqueues for a very long time: memory and the time of a commit stay
# flat (case C65), in many small transactions and in a large one; so does the
# relay's memory when nobody receives.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $node = new_node('memory', conf => q(
synchronous_commit = off
autovacuum = off
max_wal_size = '2GB'
shared_buffers = '256MB'
taskoutbox.relay_memory = '1MB'
));
my $dbh = session($node);

# TopTransactionContext and portals come and go with the statement that asks.
sub memory
{
	return value($dbh, q(SELECT sum(used_bytes)::bigint FROM pg_backend_memory_contexts));
}

# Seconds of CPU time that the session has taken: others' load does not count.
sub cpu
{
	open my $fh, '<', "/proc/$dbh->{pg_pid}/schedstat" or die $!;
	return (split ' ', <$fh>)[0] / 1e9;
}

# $n transactions of $each tasks in one call; returns the CPU time that they took.
$dbh->do(q(
	CREATE PROCEDURE many(n int, each int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. n LOOP
			FOR k IN 1 .. each LOOP
				PERFORM taskoutbox.enqueue('memory', '{"a": 1}', group_id => 'g' || (i % 100)::text);
			END LOOP;
			COMMIT;
		END LOOP;
	END $$));

sub many
{
	my ($n, $each) = @_;
	my $start = cpu();
	$dbh->do("CALL many($n, $each)");
	return cpu() - $start;
}

# Small transactions: warm up, then 40 rounds of 2,500, the first against the last.
# Each is compared with the same without us just after it: what disturbs hits both.
$dbh->do(q(
	CREATE TABLE plain (id bigserial PRIMARY KEY, payload jsonb);
	CREATE PROCEDURE plain(n int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. n LOOP
			INSERT INTO plain (payload) VALUES ('{"a": 1}');
			COMMIT;
		END LOOP;
	END $$));

sub compared
{
	my $ours = many(2500, 1);
	my $start = cpu();
	$dbh->do('CALL plain(2500)');
	return $ours / (cpu() - $start);
}
compared();
my $before = memory();
my @took = map { compared() } 1 .. 40;
my $after = memory();
my ($first, $last) = map { (sort { $a <=> $b } @$_)[5] } [ @took[ 0 .. 9 ] ], [ @took[ 30 .. 39 ] ];
note("small transactions: $before to $after bytes, CPU time to that of an INSERT $first at first, $last at last");
cmp_ok($after, '<', $before + 65536, '100,000 small transactions: memory is flat');
cmp_ok($last, '<', 2 * $first, '100,000 small transactions: the time of a commit is flat');

# A large transaction: memory at its end, and the time of its commit.
$before = memory();
$dbh->do('BEGIN');
my ($inside, $start);
for my $round (1 .. 4)
{
	$dbh->do(q(SELECT count(*) FROM generate_series(1, 50000) g,
		LATERAL taskoutbox.enqueue('memory', '{"a": 1}', group_id => 'h' || (g % 100)::text)));
	$inside = memory() if $round == 1;
}
$after = memory();
$start = cpu();
$dbh->do('COMMIT');
my $commit = cpu() - $start;
note("one transaction of 200,000: $before, $inside, $after bytes, its commit took $commit s");
cmp_ok($after, '<', $inside + 65536, 'one transaction of 200,000: memory does not grow with it');
cmp_ok(memory(), '<', $before + 65536, 'and is given back after it');
cmp_ok($commit, '<', .1, 'its commit does not take longer for it');

# Subtransactions: each row in its own.
$dbh->do(q(
	CREATE PROCEDURE nested(n int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. n LOOP
			BEGIN
				PERFORM taskoutbox.enqueue('memory', group_id => 's');
				IF i % 2 = 0 THEN
					RAISE EXCEPTION 'never mind';
				END IF;
			EXCEPTION WHEN raise_exception THEN
				NULL;
			END;
		END LOOP;
	END $$));
$dbh->do('CALL nested(100)');
$before = memory();
$dbh->do('CALL nested(20000)');
$after = memory();
cmp_ok($after, '<', $before + 65536, '20,000 subtransactions: memory is flat');

# What does not fit into the relay's memory is counted again when it is read.
# All of it is there, and the relay kept its bound.
my $rows = 102_500 + 200_000 + 50 + 10_000;
is(value($dbh, 'SELECT count(*) FROM taskoutbox.task_outbox'), $rows, 'every row is there');
my $consumer = session($node);
my $seen = 0;
for (1 .. 20)
{
	my @m = receive($consumer, max => 1000, wait => '5 s');
	$seen += @m;
	is(value($consumer, 'SELECT taskoutbox.delete($1::text[])', [ map { $_->{receipt_handle} } @m ]), scalar(@m), 'deleted');
}
note("20 receives brought $seen");
cmp_ok($seen, '>', 20, 'and can be received');
my $bytes = value($dbh, q(SELECT memory_bytes FROM taskoutbox.relay_status WHERE database = 'postgres'));
cmp_ok($bytes, '<=', 1024 * 1024, "the relay holds $bytes bytes, no more than relay_memory");

sub is_exact
{
	my ($what) = @_;
	my $known = q(SELECT sum(waiting + in_flight) FROM taskoutbox.queue_metrics);
	my $there = 'SELECT count(*) FROM taskoutbox.task_outbox';

	ok(poll(sub { value($dbh, $known) == value($dbh, $there) }, 10), $what)
	  or diag(value($dbh, $known), ' of ', value($dbh, $there));
	return;
}
is_exact('and knows of all the rest');

# The next relay adopts what is in flight first, here the youngest task of all.
$dbh->do(q(SELECT taskoutbox.create_queue('other')));
$dbh->do(q(SELECT taskoutbox.enqueue('memory', queue => 'other')));
is(scalar(my @one = receive($consumer, queue => 'other', vt => '1 hour', wait => '10 s')), 1, 'one is in flight');
my $pid = relay_pid($dbh);
value($dbh, 'SELECT pg_terminate_backend($1)', $pid);
poll(sub { my $new = relay_pid($dbh); $new && $new != $pid }, 30);
is(scalar(my @none = receive($consumer, queue => 'other', wait => '1 s')), 0, 'a new relay knows all that is there');
is_exact('and counts it anew');

done_testing();
