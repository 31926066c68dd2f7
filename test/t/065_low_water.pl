# Dead rows that vacuum may not remove: a starting relay begins after them, and misses
# nothing that came in below all the same.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $node = new_node('low_water', conf => q(
fsync = off
autovacuum = off
max_wal_size = '2GB'
shared_buffers = '256MB'
));
my $dbh = session($node);

sub mark
{
	return value($dbh, 'SELECT min(id) FROM taskoutbox.low_water_mark');
}

# The relay looks on when it has something to do.
sub poll_relay
{
	my ($condition) = @_;

	return poll(sub {
		value($dbh, q(SELECT waiting FROM taskoutbox.queue_metrics WHERE queue = 'default'));
		$condition->();
	}, 60);
}

sub mark_rises_to
{
	my ($id) = @_;
	return poll_relay(sub { mark() >= $id });
}

# Whoever holds a transaction open keeps all rows that were deleted since.
sub hold
{
	my $session = session($node);
	$session->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
	value($session, 'SELECT pg_current_xact_id()');
	return $session;
}

sub forget_many
{
	value($dbh, q(SELECT count(taskoutbox.enqueue('many', group_id => (n % 100)::text, queue => 'many')) FROM generate_series(1, 120000) n));
	return value($dbh, q(SELECT taskoutbox.purge('many')));
}

my $holder = hold();

value($dbh, q(SELECT taskoutbox.create_queue('many')));
is(mark(), 1, 'at first the mark is at the first id');
is(forget_many(), 120_000, 'many rows came and went');
ok(mark_rises_to(100_000), 'the mark rises') or diag(mark());
is(value($dbh, 'SELECT count(*) FROM taskoutbox.low_water_mark'), 1, 'there is one');
my $high = enqueue($dbh, 'g');

# Rows that the owner inserts with ids of his own bring a mark of their own.
sub insert_low
{
	my ($session, $id) = @_;
	return $session->do(q(INSERT INTO taskoutbox.task_outbox (id, task_type, group_id) VALUES ($1, 'low', 'g')), undef, $id);
}
$dbh->do('BEGIN');
insert_low($dbh, 30);
$dbh->do('SAVEPOINT s');
insert_low($dbh, 10);
$dbh->do('ROLLBACK TO s');
insert_low($dbh, 20);
$dbh->do('COMMIT');
is(mark(), 20, 'the smallest of what the owner inserted');
undef $holder;
crash($node);
$dbh = session($node);
is(ids(drain($dbh)), "20 30 $high", 'after a crash all of the group come in the order of their ids');
$holder = hold();
ok(mark_rises_to(100_000), 'and when they are done, the mark rises again') or diag(mark());

# A row that comes in below where the relay has looked already, and stays.
my $before = mark();
insert_low($dbh, 40);
my ($m) = receive($dbh, vt => '12 h', wait => '5 s');
is($m->{id}, 40, 'a row below the mark is received');
forget_many();
ok(poll_relay(sub { value($dbh, 'SELECT count(*) FROM taskoutbox.low_water_mark') == 1 }), 'the relay replaces the marks');
is(mark(), 40, 'and leaves them as low as the row is');
value($dbh, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle});
ok(mark_rises_to($before + 1), 'until it is gone') or diag(mark());

# The sequence can be set back.
$high = enqueue($dbh, 'g');
value($dbh, q(SELECT setval('taskoutbox.task_outbox_id_seq', 100)));
my $low = enqueue($dbh, 'h');
is($low, 101, 'an id below the mark');
crash($node);
$dbh = session($node);
is(join(' ', sort { $a <=> $b } map { $_->{id} } drain($dbh)), "$low $high",
	'what nothing announced below the mark is delivered all the same');

$dbh->do('TRUNCATE taskoutbox.task_outbox RESTART IDENTITY');
is(mark(), 1, 'TRUNCATE sets the mark back');

# No key, and rows that the relay deletes: a publication wants to know which.
$node->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
forget_many();
ok(mark_rises_to(100_000), 'the mark rises when all tables are published') or diag(mark());
is(state_of($dbh, 'SELECT taskoutbox.confirm()'), '00000', 'and a copy can be confirmed');

done_testing();
