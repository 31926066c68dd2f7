# enqueue and receive are good guests: they send no notifications (C100, C101), keep
# nothing in the session that a transaction pooler would miss (C102), and what
# the relay writes is seen by autovacuum (C52), while its memory (C67) and what it
# reads per message while somebody holds a snapshot (C92) stay flat.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $node = new_node('guest', conf => q(
synchronous_commit = off
max_wal_size = '2GB'
autovacuum = off
));
my $dbh = session($node);
my $other = session($node);

# C100, C101: somebody who listens to everything there is hears nothing, also of a
# payload that no notification could carry.
$other->do('LISTEN taskoutbox');
value($dbh, q(SELECT id FROM taskoutbox.enqueue('big', jsonb_build_object('k', repeat('x', 200000)))));
my @big = receive($dbh, wait => '5 s');
is(length($big[0]{payload}), 200_000 + length('{"k": ""}'), 'a payload of 200,000 bytes arrives');
is(value($other, 'SELECT pg_notification_queue_usage()'), 0, 'no notification was sent');
ok(!defined $other->pg_notifies, 'and none received');

# C102: each transaction on another session, as a pooler does, and DISCARD ALL after it
my @sessions = map { session($node) } 1 .. 3;
my $handle = $big[0]{receipt_handle};
for my $i (0 .. 8)
{
	my $s = $sessions[ $i % 3 ];
	$s->do('BEGIN');
	value($s, q(SELECT e.id FROM taskoutbox.enqueue('pooled', group_id => 'g', deduplication_id => 'd' || $1::text) e), $i);
	value($s, 'SELECT taskoutbox.delete($1)', $handle) if defined $handle;
	$s->do('COMMIT');
	is(value($other, q(SELECT count(*) FROM pg_locks WHERE pid = $1 AND locktype <> 'virtualxid'), backend_pid($s)), 0,
		"transaction $i leaves no lock") if $i < 3;
	$s->do('DISCARD ALL');
	my ($m) = receive($sessions[ ($i + 1) % 3 ], wait => '5 s');
	is($m->{task_type}, 'pooled', "message $i is received by another session") or last;
	$handle = $m->{receipt_handle};
	$sessions[ ($i + 1) % 3 ]->do('DISCARD ALL');
}
is(value($other, 'SELECT taskoutbox.delete($1)', $handle), 1, 'and deleted by a third');
is(value($other, q(SELECT count(*) FROM pg_listening_channels())), 1, 'nobody else listens');

# C52: what the relay counts and buries is in the statistics.
value($dbh, q(SELECT taskoutbox.create_queue('twice', max_receive_count => 2)));
value($dbh, q(SELECT count(taskoutbox.enqueue('x', queue => 'twice')) FROM generate_series(1, 100)));
my $given_back = 0;
ok(poll(sub {
		for my $m (receive($dbh, queue => 'twice', max => 100))
		{
			value($dbh, q(SELECT taskoutbox.change_visibility($1, '0', error => 'no')), $m->{receipt_handle});
			$given_back++;
		}
		return value($dbh, q(SELECT count(*) FROM taskoutbox.dead_letter)) == 100;
	}, 30), '100 messages go to the dead letters');
is($given_back, 200, 'after two receives each');
ok(poll(sub {
		my ($s) = rows($dbh, q(SELECT
			(SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'task_outbox') AS updated,
			(SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'dead_letter') AS dead));
		return $s->{updated} >= 100 && $s->{dead} >= 100;
	}, 70), 'C52: the statistics know of the relay\'s changes');

# C67: 100,000 messages through the relay, every tenth of them once in vain
sub rss
{
	my $pid = relay_pid($dbh);
	open my $fh, '<', "/proc/$pid/status" or die $!;
	my ($kb) = map { /^RssAnon:\s+(\d+)/ ? $1 : () } <$fh>;
	return $kb;
}

$dbh->do(q(
	CREATE PROCEDURE work(messages int, batch int) LANGUAGE plpgsql AS $$
	DECLARE
		n int := 0;
		m taskoutbox.message[];
	BEGIN
		WHILE n < messages LOOP
			PERFORM count(taskoutbox.enqueue('work', '{"a": 1}', group_id => 'g' || i)) FROM generate_series(1, batch) i;
			COMMIT;
			LOOP
				m := ARRAY(SELECT r FROM taskoutbox.receive(max_messages => batch) r);
				EXIT WHEN m = '{}';
				PERFORM CASE WHEN i % 10 = 0 AND m[i].receive_count = 1
					THEN taskoutbox.change_visibility(m[i].receipt_handle, '0')
					ELSE taskoutbox.delete(m[i].receipt_handle) END FROM generate_series(1, cardinality(m)) i;
				COMMIT;
			END LOOP;
			n := n + batch;
		END LOOP;
	END $$));
$dbh->do('CALL work(10000, 100)');
my $before = rss();
$dbh->do('CALL work(100000, 100)');
my $after = rss();
note("RssAnon of the relay: $before kB, and $after kB after 100,000 messages more");
cmp_ok($after, '<', 1.1 * $before, 'C67: the relay does not grow');
is(value($dbh, 'SELECT count(*) FROM taskoutbox.task_outbox'), 0, 'and nothing is left');

# C92: while somebody holds a snapshot, each round reads as much as the first.
sub blocks
{
	$dbh->do('SELECT pg_stat_force_next_flush()');
	$dbh->do('SELECT 1');
	# The relay reports at most once a second.
	my $last = -1;
	my $now;
	poll(sub { ($last, $now) = ($now // -1, value($dbh, q(SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
		FROM pg_statio_user_tables WHERE relname = 'task_outbox'))); usleep_a_bit(); $last == $now }, 30);
	return $now;
}

sub usleep_a_bit { select(undef, undef, undef, 1.2); return }

$dbh->do('VACUUM taskoutbox.task_outbox');
$other->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
value($other, 'SELECT pg_current_xact_id()');
my @read;
my $at = blocks();
for (1 .. 3)
{
	$dbh->do('CALL work(10000, 100)');
	my $next = blocks();
	push @read, ($next - $at) / 10_000;
	$at = $next;
}
note("blocks per message: @read");
cmp_ok($read[-1], '<', 1.5 * $read[0] + 1, 'C92: a held snapshot does not make messages dearer');
cmp_ok(value($dbh, q(SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'task_outbox')), '>=', 30_000,
	'the dead rows are in the statistics');
$other->do('ROLLBACK');

done_testing();
