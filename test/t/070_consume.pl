# Receive, delete and change_visibility: timeouts and stale handles (C86), order
# within groups (C89), transactions that roll back (C91), isolation levels, cursors,
# subtransactions, and receives that are cancelled or die while they wait.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('consume');
my $p = session($node, app => 'producer');
my $s1 = session($node);
my $s2 = session($node);
my ($m, $n, @m, $id);

my $delete = 'SELECT taskoutbox.delete($1)';
my $give_back = q(SELECT taskoutbox.change_visibility($1, '0'));

sub gone
{
	my ($id, $what) = @_;
	return is(value($p, 'SELECT count(*) FROM taskoutbox.task_outbox WHERE id = $1', $id), 0, $what);
}

sub empty
{
	# as an operator would: the relay has to notice that by itself
	$p->do('DELETE FROM taskoutbox.task_outbox');
	return;
}

# C86: the visibility timeout is too short for the handler.
$id = enqueue($p, 'g');
($m) = receive($s1, vt => '500 ms', wait => '5 s');
is($m->{receive_count}, 1, 'C86: received for the first time');
my $start = mono();
($n) = receive($s2, vt => '1 min', wait => '10 s');
is($n->{id}, $id, 'C86: received by another consumer after its timeout');
cmp_ok(mono() - $start, '>', .3, 'C86: and not before');
is($n->{receive_count}, 2, 'C86: for the second time');
isnt($n->{receipt_handle}, $m->{receipt_handle}, 'C86: with another handle');
is(state_of($s1, $delete, $m->{receipt_handle}), 'TO012', 'C86: the late delete is refused');
is(value($s1, 'SELECT taskoutbox.delete($1, missing_ok => true)', $m->{receipt_handle}), 0, 'C86: or says false with missing_ok');
is(state_of($s1, $give_back, $m->{receipt_handle}), 'TO012', 'C86: so is change_visibility');
is(value($s1, 'SELECT taskoutbox.delete($1::text[], true)', [ $m->{receipt_handle} ]), 0, 'C86: and delete of an array');
is(value($p, 'SELECT count(*) FROM taskoutbox.task_outbox WHERE id = $1', $id), 1, 'C86: and deletes nothing');
is(value($s2, $delete, $n->{receipt_handle}), 1, 'C86: the one who has it deletes it');
gone($id, 'C86: gone');
is(state_of($s2, $delete, $n->{receipt_handle}), 'TO012', 'C86: once');

# A late delete fails before anybody else has it, too: what a stale handle does must
# not depend on others.
$id = enqueue($p, 'g');
($m) = receive($s1, vt => '200 ms', wait => '5 s');
# the scenario: a handler that is too slow
usleep(400_000);
is(state_of($s1, $delete, $m->{receipt_handle}), 'TO012', 'C86: a late delete is refused, also if nobody else received the message');
($m) = receive($s1, wait => '5 s');
is($m->{id}, $id, 'C86: and the message is there');
# change_visibility gives more time
is(value($s1, q(SELECT taskoutbox.change_visibility($1, '200 ms')), $m->{receipt_handle}), 1, 'shorter');
is(value($s1, q(SELECT taskoutbox.change_visibility($1, '1 min')), $m->{receipt_handle}), 1, 'longer');
is(ids(receive($s2, wait => '700 ms')), '', 'change_visibility extends the timeout');
is(value($s1, $delete, $m->{receipt_handle}), 1, 'and the handle is good until then');

# C89: three rows in G1, two in G2, two at a time; one is left to its timeout.
my @g1 = map { enqueue($p, 'G1') } 1 .. 3;
my @g2 = map { enqueue($p, 'G2') } 1 .. 2;
($m) = receive($s1, max => 1, vt => '1 s', wait => '5 s');
is($m->{id}, $g1[0], 'C89: first of G1');
@m = ();
while (my @r = receive($s2, max => 2, vt => '1 min', wait => '300 ms'))
{
	push @m, @r;
	value($s2, 'SELECT taskoutbox.delete($1::text[])', [ map { $_->{receipt_handle} } @r ]);
}
is(ids(@m), "@g2", 'C89: then only G2, in order: nothing of G1 while its first is in flight');
($m) = receive($s1, max => 1, vt => '1 min', wait => '10 s');
is($m->{id}, $g1[0], 'C89: after its timeout the first of G1 comes back before its second');
is(value($s1, $delete, $m->{receipt_handle}), 1, 'C89: deleted');
is(ids(drain($s1)), "@g1[1,2]", 'C89: then the other two, in order');

# Two of one receive: the second is done, the first fails: it comes back alone, and
# before what is enqueued now.
@m = receive_together($s1, 2, vt => '1 min');
cmp_ok($m[0]{id}, '<', $m[1]{id}, 'two of a group in one receive, in order');
is(value($s1, $delete, $m[1]{receipt_handle}), 1, 'the second is done first');
my $late = enqueue($p, $m[0]{group_id});
is(value($s1, $give_back, $m[0]{receipt_handle}), 1, 'the first failed');
is(ids(drain($s1)), "$m[0]{id} $late", 'it comes back, before a later one');

# Both fail, the last one first: order is kept.
@m = receive_together($s1, 2, vt => '1 min');
$late = enqueue($p, $m[0]{group_id});
is(value($s1, $give_back, $m[1]{receipt_handle}), 1, 'the second fails');
is(ids(receive($s2, max => 10, wait => '300 ms')), '', 'nothing of the group while the first is in flight');
is(value($s1, $give_back, $m[0]{receipt_handle}), 1, 'the first fails');
is(ids(drain($s1)), ids(@m) . " $late", 'all come back in order');

# The same over a restart of the relay, with the first still in flight.
@m = receive_together($s1, 2, vt => '1 min');
is(value($s1, $give_back, $m[1]{receipt_handle}), 1, 'the second fails');
my $relay = relay_pid($p);
value($p, 'SELECT pg_terminate_backend($1)', $relay);
ok(poll(sub { my $r = relay_pid($p); $r && $r != $relay }, 30), 'the relay restarts');
is(ids(receive($s2, max => 10, wait => '300 ms')), '', 'nothing of the group while the first is in flight');
is(value($s1, $give_back, $m[0]{receipt_handle}), 1, 'the first fails');
is(ids(drain($s1)), ids(@m), 'they come back in order');

# C91: receive in a transaction that rolls back: not undone, back after its timeout,
# and counted.
$id = enqueue($p, 'g');
$s1->do('BEGIN');
($m) = receive($s1, vt => '1 s', wait => '5 s');
is($m->{id}, $id, 'C91: received in a transaction');
$s1->do('ROLLBACK');
is(ids(receive($s2)), '', 'C91: rolled back: still in flight');
is(value($s1, q(SELECT taskoutbox.change_visibility($1, '1 s')), $m->{receipt_handle}), 1, 'C91: its handle is good');
($n) = receive($s2, vt => '1 min', wait => '10 s');
is("$n->{id} $n->{receive_count}", "$id 2", 'C91: visible again after its timeout, and the receive counted');
# Delete that is rolled back, in a savepoint and as a whole.
$s2->do('BEGIN');
$s2->do('SAVEPOINT s');
is(value($s2, $delete, $n->{receipt_handle}), 1, 'deleted in a savepoint');
$s2->do('ROLLBACK TO s');
$s2->do('COMMIT');
is(ids(receive($s1, wait => '300 ms')), '', 'rolled back to the savepoint and committed: in flight');
$s2->do('BEGIN');
is(value($s2, $delete, $n->{receipt_handle}), 1, 'deleted');
is(ids(receive($s1, wait => '300 ms')), '', 'while that is open: in flight');
$s2->do('ROLLBACK');
is(value($s2, q(SELECT taskoutbox.change_visibility($1, '0', error => 'handler said no')), $n->{receipt_handle}), 1,
	'rolled back and given back');
($m) = receive($s1, vt => '500 ms', wait => '5 s');
is("$m->{id} $m->{receive_count} $m->{last_error}", "$id 3 handler said no", 'comes back with its error');
# The deleting transaction outlasts the timeout.
$s1->do('BEGIN');
is(value($s1, $delete, $m->{receipt_handle}), 1, 'deleted, in time');
is(ids(receive($s2, wait => '2 s')), '', 'stays in flight past its timeout while that transaction is open');
$s1->do('COMMIT');
is(ids(receive($s2, wait => '1 s')), '', 'and is gone when it committed');
gone($id, 'gone');

# Poison that fails its own transaction counts, too: dead after max_receive_count.
$p->do(q(SELECT taskoutbox.create_queue('three', visibility_timeout => '300 ms', max_receive_count => 3)));
$id = enqueue($p, 'g', '{"bad": true}', 'three');
my $behind = enqueue($p, 'g', '{}', 'three');
for my $k (1 .. 3)
{
	$s1->do('BEGIN');
	($m) = receive($s1, queue => 'three', wait => '10 s');
	is("$m->{id} $m->{receive_count}", "$id $k", "poison: received, $k");
	is(state_of($s1, 'SELECT 1 / 0'), '22012', 'poison: the handler fails');
	$s1->do('ROLLBACK');
}
($m) = receive($s1, queue => 'three', wait => '10 s', vt => '1 min');
is($m->{id}, $behind, 'poison: then the one behind it comes');
my ($dead) = rows($p, 'SELECT * FROM taskoutbox.dead_letter');
is("$dead->{id} $dead->{receive_count} $dead->{queue} $dead->{group_id}", "$id 3 three g", 'poison: it is a dead letter');
is($dead->{payload}, '{"bad": true}', 'poison: with its payload');
ok($dead->{reason} ne '', "poison: and a reason: $dead->{reason}");
gone($id, 'poison: and no longer in the outbox');
value($s1, $delete, $m->{receipt_handle});

# Isolation levels: the row is younger than the snapshot.
for my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	$s1->do("BEGIN ISOLATION LEVEL $level");
	is(value($s1, 'SELECT count(*) FROM taskoutbox.task_outbox'), 0, "$level: a snapshot is taken");
	$id = enqueue($p, 'iso');
	my $next = enqueue($p, 'iso');
	($m) = receive($s1, wait => '5 s');
	is($m->{id}, $id, "$level: a younger row is received");
	is(value($s1, $delete, $m->{receipt_handle}), 1, "$level: and deleted");
	$s1->do('COMMIT');
	gone($id, "$level: gone");

	# given back and received again: its row has been updated meanwhile
	($m) = receive($s2, wait => '5 s');
	is($m->{id}, $next, "$level: the next one");
	$s1->do("BEGIN ISOLATION LEVEL $level");
	value($s1, 'SELECT count(*) FROM taskoutbox.task_outbox');
	value($s2, q(SELECT taskoutbox.change_visibility($1, '0', error => 'again')), $m->{receipt_handle});
	($m) = receive($s1, wait => '5 s');
	is("$m->{id} $m->{receive_count}", "$next 2", "$level: a row that was updated since is received");
	is(value($s1, $delete, $m->{receipt_handle}), 1, "$level: and deleted");
	$s1->do('COMMIT');
	gone($next, "$level: gone");
}
# Two consumers at once do not fail each other.
my @ids = map { enqueue($p, "ser$_") } 1 .. 20;
$_->do('BEGIN ISOLATION LEVEL SERIALIZABLE') for $s1, $s2;
value($_, 'SELECT count(*) FROM pg_class') for $s1, $s2;
my (@one, @two);
poll(sub {
	push @one, receive($s1, max => 10 - @one, wait => '1 s') if @one < 10;
	push @two, receive($s2, max => 10 - @two, wait => '1 s') if @two < 10;
	@one + @two == 20;
}, 20);
value($s1, 'SELECT taskoutbox.delete($1::text[])', [ map { $_->{receipt_handle} } @one ]);
value($s2, 'SELECT taskoutbox.delete($1::text[])', [ map { $_->{receipt_handle} } @two ]);
is(state_of($_, 'COMMIT'), '00000', 'SERIALIZABLE: two consumers at a time') for $s1, $s2;
is(join(' ', sort { $a <=> $b } map { $_->{id} } @one, @two), "@ids", 'SERIALIZABLE: they shared the messages');
is(value($p, 'SELECT count(*) FROM taskoutbox.task_outbox'), 0, 'SERIALIZABLE: all gone');

# A transaction receives, and deletes, what it enqueued itself?  It cannot: not
# committed is not there.
$s1->do('BEGIN');
$id = enqueue($s1, 'own');
is(ids(receive($s1, wait => '300 ms')), '', 'a transaction does not receive its own task');
$s1->do('COMMIT');
($m) = receive($s1, wait => '5 s');
is($m->{id}, $id, 'after the commit it comes');
value($s1, $delete, $m->{receipt_handle});

# A cursor that is not read to its end, and a subtransaction that is rolled back:
# nothing is lost.
@ids = map { enqueue($p, "cur$_") } 1 .. 5;
$s1->do('BEGIN');
$s1->do(q(DECLARE c CURSOR FOR SELECT * FROM taskoutbox.receive('default', 5, '1 s', '5 s')));
my ($fetched) = rows($s1, 'FETCH 1 FROM c');
ok(defined $fetched, 'cursor: one fetched');
$s1->do('CLOSE c');
is(value($s1, $delete, $fetched->{receipt_handle}), 1, 'cursor: and deleted');
$s1->do('COMMIT');
my %got;
poll(sub {
	$got{ $_->{id} }++ for receive($s2, max => 10, vt => '1 min', wait => '1 s');
	keys %got == 4;
}, 20);
is(join(' ', sort { $a <=> $b } keys %got, $fetched->{id}), "@ids", 'cursor: the others come back');
empty();

$id = enqueue($p, 'sub');
$s1->do('BEGIN');
$s1->do('SAVEPOINT s');
($m) = receive($s1, vt => '1 min', wait => '5 s');
$s1->do('ROLLBACK TO s');
is(value($s1, $delete, $m->{receipt_handle}), 1, 'received in a subtransaction that was rolled back: its handle deletes');
$s1->do('COMMIT');
gone($id, 'gone');

# LIMIT, and an error in the same statement.
$id = enqueue($p, 'err');
is(state_of($s1, q(SELECT 1 / (receive_count - 1) FROM taskoutbox.receive('default', 1, '1 s', '5 s'))),
	'22012', 'an error in the statement that receives');
($m) = receive($s2, vt => '1 min', wait => '10 s');
is("$m->{id} $m->{receive_count}", "$id 2", 'the message comes back, and was counted');
value($s2, $delete, $m->{receipt_handle});
$id = enqueue($p, 'err');
is( state_of($s1, q(WITH m AS MATERIALIZED (SELECT * FROM taskoutbox.receive('default', 1, '1 min', '5 s')),
		d AS MATERIALIZED (SELECT taskoutbox.delete(receipt_handle) FROM m) SELECT 1 / (count(*) - 1) FROM d)),
	'22012', 'received, deleted and failed in one statement');
is(ids(receive($s2, wait => '300 ms')), '', 'it is in flight until its timeout');
is(value($p, 'SELECT count(*) FROM taskoutbox.task_outbox WHERE id = $1', $id), 1, 'and its row is there');
empty();

# Received and deleted in one statement, and it works.
@ids = map { enqueue($p, "one$_") } 1 .. 10;
my $count = 0;
poll(sub {
	$count += value($s1, q(SELECT count(taskoutbox.delete(receipt_handle))
		FROM taskoutbox.receive('default', 10, '1 min', '1 s')));
	$count == 10;
}, 20);
is($count, 10, 'received and deleted in one statement');
is(value($p, 'SELECT count(*) FROM taskoutbox.task_outbox'), 0, 'gone');

# Cancelled or terminated while it waits: the next message is not leased to nobody.
# The lease would last an hour.
my $receive = q(SELECT * FROM taskoutbox.receive('default', 1, '1 h', '20 s'));
for my $how ('pg_cancel_backend', 'pg_terminate_backend')
{
	my $victim = session($node);
	my $query = start_query($victim, $receive);
	wait_until_waiting($p, backend_pid($victim));
	is(value($p, "SELECT $how(\$1)", backend_pid($victim)), 1, "$how: sent");
	ok(!eval { wait_query($query); 1 }, "$how: a waiting receive ends");
	is($victim->state, '57014', "$how: as cancelled") if $how eq 'pg_cancel_backend';
	$id = enqueue($p, 'cancel');
	($m) = receive($s1, wait => '5 s');
	is($m && "$m->{id} $m->{receive_count}", "$id 1", "$how: the next message comes to the next one, as new");
	value($s1, $delete, $m->{receipt_handle});
}

# The same as a race: cancelled in the moment in which a message comes.  Either
# the receive got it, or another one does, at the latest after the timeout of
# a statement that was cancelled after it had received.
my $race = q(SELECT * FROM taskoutbox.receive('default', 1, '1 s', '20 s'));
my ($by_first, $by_second, $lost) = (0, 0, 0);
srand(1);
for (1 .. 60)
{
	my $query = start_query($s1, $race);
	wait_until_waiting($p, backend_pid($s1));
	my $insert = start_query($p, q(SELECT id FROM taskoutbox.enqueue('race', group_id => 'race')));
	# where in the delivery the cancel strikes
	usleep(int(rand 800));
	kill 'INT', backend_pid($s1);
	my ($e) = wait_query($insert);
	my @r = eval { wait_query($query) };
	if (@r)
	{
		$by_first++;
	}
	elsif (@r = receive($s2, wait => '10 s'))
	{
		$by_second++;
	}
	else
	{
		$lost++;
		next;
	}
	# The signal may come to an idle session or to the next statement.
	eval { value($s1, 'SELECT 1') };
	value($s2, $delete, $r[0]{receipt_handle});
}
note("race: $by_first received before, $by_second by another after the cancel");
is($lost, 0, 'race of cancel and delivery: no message is lost');
is(value($p, 'SELECT count(*) FROM taskoutbox.task_outbox'), 0, 'race: all gone');

# A session that ends in the middle of everything.
$id = enqueue($p, 'die');
my $victim = session($node);
($m) = receive($victim, vt => '1 s', wait => '5 s');
$victim->do('BEGIN');
value($victim, $delete, $m->{receipt_handle});
value($p, 'SELECT pg_terminate_backend($1)', backend_pid($victim));
($m) = receive($s1, wait => '10 s');
is("$m->{id} $m->{receive_count}", "$id 2", 'a session that dies with an open delete: the message comes back');
value($s1, $delete, $m->{receipt_handle});

# An operator's DELETE: nobody gets it any more, and a receive that waits goes on
# waiting for the next one.
$id = enqueue($p, 'op');
my $other = enqueue($p, 'op');
$p->do('DELETE FROM taskoutbox.task_outbox WHERE id = $1', undef, $id);
is(ids(receive($s1, wait => '5 s', vt => '1 min')), $other, 'a row that was deleted by hand is not given out, the next of its group is');
empty();

# One handle in two places.
$id = enqueue($p, 'twice');
($m) = receive($s1, vt => '10 min', wait => '5 s');
$s1->do('BEGIN');
value($s1, $delete, $m->{receipt_handle});
is(state_of($s2, $delete, $m->{receipt_handle}), 'TO013', 'deleted by an open transaction: refused to another one, without waiting');
is(state_of($s2, $give_back, $m->{receipt_handle}), 'TO013', 'so is change_visibility');
is(state_of($s1, $delete, $m->{receipt_handle}), 'TO012', 'and stale in the same one');
$s1->do('ROLLBACK');
is(state_of($s1, 'SELECT taskoutbox.delete($1::text[])', [ ($m->{receipt_handle}) x 2 ]), 'TO012', 'twice in one array');
is(value($p, 'SELECT count(*) FROM taskoutbox.task_outbox WHERE id = $1', $id), 1, 'nothing is deleted by that');
is(value($s2, $delete, $m->{receipt_handle}), 1, 'then it deletes');
gone($id, 'gone');

# A cancel that is a moment late takes its deletion back, which is waited for; an owner
# who keeps it is not.
$id = enqueue($p, 'late');
($m) = receive($s1, vt => '10 min', wait => '5 s');
$p->do('BEGIN');
$p->do('DELETE FROM taskoutbox.task_outbox WHERE id = $1', undef, $id);
is(state_of($s1, $delete, $m->{receipt_handle}), 'TO013', 'deleted by its owner in an open transaction: refused');
my $deleting = start_query($s1, $delete, $m->{receipt_handle});
poll(sub { query_ready($deleting) || value($s2, q(SELECT state = 'active' FROM pg_stat_activity WHERE pid = $1), backend_pid($s1)) });
$p->do('ROLLBACK');
is(scalar(eval { wait_query($deleting) }), 1, 'which he takes back: deleted') or diag($@);
gone($id, 'gone');

# A receive that runs into statement_timeout leaves nothing leased either.
$s1->do(q(SET statement_timeout = '300 ms'));
is(state_of($s1, $receive), '57014', 'statement_timeout ends a receive that waits');
$s1->do('RESET statement_timeout');
$id = enqueue($p, 'timeout');
($m) = receive($s2, wait => '5 s');
is("$m->{id} $m->{receive_count}", "$id 1", 'the next message comes to the next one, as new');
value($s2, $delete, $m->{receipt_handle});

# A receive that waits holds nothing that maintenance of the table would wait for, and
# rows that move, or go, do not confuse anybody.
my $sleeper = start_query($s1, $receive);
wait_until_waiting($p, backend_pid($s1));
$p->do(q(SET lock_timeout = '5 s'));
is(state_of($p, 'VACUUM FULL taskoutbox.task_outbox'), '00000', 'VACUUM FULL while a receive waits');
is(state_of($p, 'TRUNCATE taskoutbox.task_outbox'), '00000', 'TRUNCATE while a receive waits');
$id = enqueue($p, 'vacuum');
($m) = wait_query($sleeper);
is($m->{id}, $id, 'and the receive gets its message');
value($s1, $delete, $m->{receipt_handle});
@ids = map { enqueue($p, "full$_") } 1 .. 10;
@m = map { receive($s1, vt => '10 min', wait => '5 s') } 1 .. 5;
is(state_of($p, 'VACUUM FULL taskoutbox.task_outbox'), '00000', 'VACUUM FULL with messages in flight and waiting');
is(value($s1, 'SELECT taskoutbox.delete($1::text[])', [ map { $_->{receipt_handle} } @m ]), 5, 'those in flight are deleted');
is(join(' ', sort { $a <=> $b } map { $_->{id} } @m, drain($s2)), "@ids", 'the others are received');
@ids = map { enqueue($p, "trunc$_") } 1 .. 3;
is(state_of($p, 'TRUNCATE taskoutbox.task_outbox'), '00000', 'TRUNCATE with messages waiting');
$id = enqueue($p, 'trunc1');
is(ids(drain($s2)), $id, 'only what came afterwards is received');

# Somebody locks the table for a while: everything waits, and then goes on.
$p->do('BEGIN');
$p->do('LOCK TABLE taskoutbox.task_outbox IN ACCESS EXCLUSIVE MODE');
my $blocked = start_query($s2, q(SELECT id FROM taskoutbox.enqueue('test', group_id => 'lock')));
poll(sub { value($p, q(SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted), backend_pid($s2)) })
  or fail('enqueue does not wait for the lock');
my $another = start_query($s1, $receive);
$p->do('COMMIT');
my ($e) = wait_query($blocked);
($m) = wait_query($another);
is($m->{id}, $e->{id}, 'after a lock on the table was released everything goes on');
value($s1, $delete, $m->{receipt_handle});

# The first receive of a queue that the relay does not know yet, without a wait: it
# gives what was committed before. (On a machine that stands still for a second, not.)
my $found = 0;
for my $try (1 .. 5)
{
	my $relay = relay_pid($p);
	kill 'STOP', $relay;
	$p->do(q(SELECT taskoutbox.create_queue($1)), undef, "new$try");
	enqueue($p, 'g', undef, "new$try");
	my $first = start_query($s1, qq(SELECT * FROM taskoutbox.receive('new$try', 10)));
	wait_until_waiting($p, backend_pid($s1));
	kill 'CONT', $relay;
	($m) = wait_query($first);
	next unless $m;
	value($s1, $delete, $m->{receipt_handle});
	$found++;
	last;
}
is($found, 1, 'the first receive of a new queue');

# Handles that are none.
is(state_of($s1, $delete, $_), 'TO011', "malformed handle '$_'") for '', 'x', '00000000', "1' or '1'='1", 'ä' x 40;
is(state_of($s1, q(SELECT * FROM taskoutbox.receive('no such queue'))), 'TO005', 'unknown queue')
  if 0 + value($p, q(SELECT count(*) FROM taskoutbox.queue WHERE name = 'no such queue')) == 0;
for my $bad ([ max => 0 ], [ max => 1001 ], [ max => -1 ], [ vt => '-1 s' ], [ vt => '13 h' ], [ vt => 'infinity' ], [ wait => '21 s' ], [ wait => '-1 s' ])
{
	my %o = (max => 1, vt => undef, wait => '0', @$bad);
	my $state = state_of($s1, 'SELECT * FROM taskoutbox.receive(max_messages => $1::int, visibility_timeout => $2::interval, wait => $3::interval)',
		@o{qw(max vt wait)});
	# this server knows no infinite interval; then it is the cast that fails
	like($state, qr/^(?:TO0\d\d|2\d...)$/, "receive refuses @$bad");
}
my ($figures) = rows($p, q(SELECT * FROM taskoutbox.queue_metrics WHERE queue = 'default'));
is($figures->{waiting}, 0, 'figures: nothing waits');

done_testing();
