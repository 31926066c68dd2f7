# What is published: a task exactly when its transaction and savepoint committed,
# in the order of P4, whatever way the row came in.  Cases C01, C02, C13, C15, C16,
# and P1 with synchronous_commit = off.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('publish', conf => q(
# a commit that nobody waits for stays in memory for a while
wal_writer_delay = '10s'
wal_writer_flush_after = '1GB'
autovacuum = off
));
my $s1 = session($node);
my $s2 = session($node);
my $consumer = session($node);

# Receives what comes and deletes it; returns the ids in the order of receipt, space
# separated.  Stops when nothing comes for half a second.
sub drain_one_by_one
{
	my (@got);
	while (my @m = receive($consumer, max => 1, wait => @got ? '500 ms' : '5 s'))
	{
		push @got, @m;
		value($consumer, 'SELECT taskoutbox.delete($1)', $m[0]{receipt_handle});
	}
	return ids(@got);
}

sub nothing_comes
{
	my ($what) = @_;
	return is(ids(receive($consumer, max => 10, wait => '500 ms')), '', $what);
}

sub delete_it
{
	my ($m) = @_;
	return value($consumer, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle});
}

# C01: the lower id commits later.
$s1->do('BEGIN');
my $first = enqueue($s1, undef);
my $second = enqueue($s2, undef);
cmp_ok($first, '<', $second, 'C01: ids drawn in this order');
is(drain_one_by_one(), $second, 'C01: an open transaction with a lower id holds up nobody');
$s1->do('COMMIT');
is(drain_one_by_one(), $first, 'C01: and its row is not passed over');

# The same with other rows before, between and behind, many at a time.
$s1->do('BEGIN');
my @low = map { enqueue($s1, "l$_") } 1 .. 50;
my @high = map { enqueue($s2, "h$_") } 1 .. 50;
$s1->do('SAVEPOINT s');
my @more = map { enqueue($s1, "m$_") } 1 .. 50;
is(join(' ', sort { $a <=> $b } split / /, drain_one_by_one()), "@high", 'C01: many at a time: committed ones');
$s1->do('COMMIT');
is(join(' ', sort { $a <=> $b } split / /, drain_one_by_one()), "@low @more", 'C01: many at a time: the others after their commit');

# C02: two open transactions in one group.  Our rule (P4): what committed before the
# other's call is before it; concurrent ones in the order of discovery.
$s1->do('BEGIN');
$first = enqueue($s1, 'G');
$second = enqueue($s2, 'G');
my ($m) = receive($consumer, wait => '5 s');
is($m->{id}, $second, 'C02: committed first, delivered first; the open one is not waited for');
$s1->do('COMMIT');
nothing_comes('C02: the group is locked while its message is in flight');
value($consumer, q(SELECT taskoutbox.change_visibility($1, '0')), $m->{receipt_handle});
($m) = receive($consumer, wait => '5 s');
is($m->{id}, $second, 'C02: a head that was attempted stays the head');

# Also over a restart of the relay, which knows it from the lease.
my $old = relay_pid($s1);
value($s1, 'SELECT pg_terminate_backend($1)', $old);
ok(poll(sub { my $p = relay_pid($s1); $p && $p != $old }), 'relay restarted');
nothing_comes('C02: still locked after a restart of the relay');
value($consumer, q(SELECT taskoutbox.change_visibility($1, '0')), $m->{receipt_handle});
($m) = receive($consumer, wait => '5 s');
is($m->{id}, $second, 'C02: and the same head');
delete_it($m);
is(drain_one_by_one(), $first, 'C02: then the other one');

# Commit order against id order, then one more after both.
$s1->do('BEGIN');
$first = enqueue($s1, 'G');
$s2->do('BEGIN');
$second = enqueue($s2, 'G');
$s2->do('COMMIT');
$s1->do('COMMIT');
my $third = enqueue($s2, 'G');
like(drain_one_by_one(), qr/^(?:$first $second|$second $first) $third$/, 'C02: concurrent ones in either order, a later one after both');

# Strictly one after the other, by alternating sessions, some prepared: always in
# the order of the calls.
my @order;
for my $n (1 .. 60)
{
	my $s = $n % 2 ? $s1 : $s2;
	if ($n % 3 == 0)
	{
		$s->do('BEGIN');
		push @order, enqueue($s, 'P4');
		$s->do("PREPARE TRANSACTION 'p4'");
		($n % 2 ? $s2 : $s1)->do("COMMIT PREPARED 'p4'");
	}
	elsif ($n % 5 == 0)
	{
		push @order, value($s, q(INSERT INTO taskoutbox.task_outbox (task_type, group_id)
			VALUES ('test', 'P4') RETURNING id));
	}
	else
	{
		push @order, enqueue($s, 'P4');
	}
}
is(drain_one_by_one(), "@order", 'P4: one after the other, in the order of the calls');

# One transaction: in call order, over savepoints and statements of many rows.
$s1->do('BEGIN');
@order = map { enqueue($s1, 'T') } 1 .. 3;
$s1->do('SAVEPOINT s');
push @order, enqueue($s1, 'T');
$s1->do('RELEASE s');
push @order, map { $_->{id} } rows($s1, q(SELECT e.id FROM generate_series(1, 200) g,
	LATERAL taskoutbox.enqueue('test', jsonb_build_object('n', g), group_id => 'T') e));
push @order, enqueue($s1, 'T');
$s1->do('COMMIT');
is(drain_one_by_one(), "@order", 'P4: the rows of one transaction in call order');

# C13: savepoints, subtransactions of PL/pgSQL, and their wake-ups.
$s1->do('BEGIN');
$s1->do('SAVEPOINT s');
my $x = enqueue($s1, 'S', '{"v": "x"}');
$s1->do('ROLLBACK TO s');
my $y = enqueue($s1, 'S', '{"v": "y"}');
$s1->do('COMMIT');
is(drain_one_by_one(), $y, 'C13: only what was not rolled back to the savepoint');
$s1->do(q(DO $$
BEGIN
	BEGIN
		PERFORM taskoutbox.enqueue('test', '{"v": "x"}', group_id => 'S');
		RAISE EXCEPTION 'never mind';
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
	PERFORM taskoutbox.enqueue('test', '{"v": "y"}', group_id => 'S');
END $$));
is(join(' ', map { $_->{payload} } receive($consumer, max => 10, vt => '1 s', wait => '5 s')),
	'{"v": "y"}', 'C13: the same in PL/pgSQL');
$s1->do('DELETE FROM taskoutbox.task_outbox');
# A transaction all of whose rows are gone.
$s1->do('BEGIN');
$s1->do('SAVEPOINT s');
enqueue($s1, 'S');
$s1->do('ROLLBACK TO s');
$s1->do('COMMIT');
$s1->do('BEGIN');
enqueue($s1, 'S');
$s1->do('ROLLBACK');
nothing_comes('C13: nothing of a rolled-back transaction');

# C15: prepared transactions.
$s1->do('BEGIN');
$first = enqueue($s1, 'Q');
$s1->do("PREPARE TRANSACTION 'a'");
nothing_comes('C15: nothing is published at PREPARE');
my $waiting = start_query($consumer, q(SELECT * FROM taskoutbox.receive(wait => '20 s')));
wait_until_waiting($s1, backend_pid($consumer));
my $start = mono();
$s2->do("COMMIT PREPARED 'a'");
my @got = wait_query($waiting);
is(ids(@got), $first, 'C15: published at COMMIT PREPARED');
cmp_ok(mono() - $start, '<', 2, 'C15: at once');
# The one that is enqueued after COMMIT PREPARED comes after it.
delete_it($got[0]);
$s1->do('BEGIN');
$first = enqueue($s1, 'Q');
$s1->do("PREPARE TRANSACTION 'a'");
$s2->do("COMMIT PREPARED 'a'");
$second = enqueue($s1, 'Q');
is(drain_one_by_one(), "$first $second", 'C15: in order with what is enqueued afterwards');
$s1->do('BEGIN');
enqueue($s1, 'Q');
$s1->do("PREPARE TRANSACTION 'b'");
$s2->do("ROLLBACK PREPARED 'b'");
nothing_comes('C15: nothing after ROLLBACK PREPARED');

# A delete in a prepared transaction, over its visibility timeout.
$first = enqueue($s1, 'R');
$second = enqueue($s1, 'R');
($m) = receive($consumer, vt => '500 ms', wait => '5 s');
is($m->{id}, $first, 'C15: received');
$consumer->do('BEGIN');
delete_it($m);
$consumer->do("PREPARE TRANSACTION 'd'");
is(state_of($s2, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle}), 'TO013', 'C15: deleted in a prepared transaction: its handle is refused, without waiting');
is(ids(receive($consumer, max => 10, wait => '2 s')), '', 'C15: deleted in a prepared transaction: stays in flight past its timeout');
$s2->do("ROLLBACK PREPARED 'd'");
($m) = receive($consumer, vt => '1 min', wait => '10 s');
is($m->{id}, $first, 'C15: comes back after ROLLBACK PREPARED');
is($m->{receive_count}, 2, 'C15: and was counted');
$consumer->do('BEGIN');
delete_it($m);
$consumer->do("PREPARE TRANSACTION 'd'");
$s2->do("COMMIT PREPARED 'd'");
($m) = receive($consumer, vt => '1 min', wait => '10 s');
is($m->{id}, $second, 'C15: gone after COMMIT PREPARED, the next one comes');
delete_it($m);

# Prepared before a restart of the server, committed after it.
$s1->do('BEGIN');
$first = enqueue($s1, 'U');
$s1->do("PREPARE TRANSACTION 'u'");
$node->restart;
wait_for_relay($node);
$_ = session($node) for $s1, $s2, $consumer;
$second = enqueue($s1, 'V');
is(drain_one_by_one(), $second, 'C15: prepared before a restart: not yet');
$s2->do("COMMIT PREPARED 'u'");
is(drain_one_by_one(), $first, 'C15: prepared before a restart, committed after it');

# Not where nothing may be written.
$s1->do('BEGIN READ ONLY');
is(state_of($s1, q(SELECT taskoutbox.enqueue('test'))), '25006', 'enqueue in a read-only transaction is refused');
$s1->do('ROLLBACK');

# C16: rows that come in by other means.
sub copy
{
	my ($columns, @lines) = @_;
	$s1->do("COPY taskoutbox.task_outbox ($columns) FROM STDIN");
	my $ok = eval {
		$s1->pg_putcopydata("$_\n") for @lines;
		$s1->pg_putcopyend;
		1;
	};
	return $ok ? '00000' : $s1->state;
}

is(copy('task_type, payload, group_id', map { qq(copied\t{"n": $_}\tC) } 1 .. 100), '00000', 'C16: COPY by the owner');
@order = map { $_->{id} } rows($s1, 'SELECT id FROM taskoutbox.task_outbox ORDER BY id');
is(scalar(@order), 100, 'C16: copied');
is(drain_one_by_one(), "@order", 'C16: delivered, in order');
$first = value($s1, q(INSERT INTO taskoutbox.task_outbox (task_type) VALUES ('direct') RETURNING id));
is(drain_one_by_one(), $first, 'C16: INSERT by the owner is delivered');
$s1->do('SET session_replication_role = replica');
$first = value($s1, q(INSERT INTO taskoutbox.task_outbox (task_type) VALUES ('direct') RETURNING id));
is(drain_one_by_one(), $first, 'C16: also when only ALWAYS triggers fire, as in logical replication');
$s1->do('RESET session_replication_role');

# Such a row cannot be in a transaction that is prepared: refused, not forgotten.
$s1->do('BEGIN');
value($s1, q(INSERT INTO taskoutbox.task_outbox (task_type) VALUES ('direct') RETURNING id));
is(state_of($s1, "PREPARE TRANSACTION 'direct'"), '0A000', 'C16: PREPARE after a direct INSERT is refused');
$s1->do('ROLLBACK');

# The same checks as in enqueue: each of these is refused by both, with the same
# SQLSTATE, or by the table's own NOT NULL.
my %bad = (
	'empty task_type' => [ task_type => q('') ],
	'long task_type' => [ task_type => q(repeat('x', 129)) ],
	'empty queue' => [ queue => q('') ],
	'empty group_id' => [ group_id => q('') ],
	'long group_id' => [ group_id => q(repeat('x', 129)) ],
	'group_id with a space' => [ group_id => q('a b') ],
	'group_id that is not ASCII' => [ group_id => q(U&'\00e9') ],
	'large payload' => [ payload => q(to_jsonb(repeat('x', 262145))) ],
	'large payload in bytes only' => [ payload => q(to_jsonb(repeat(U&'\00e9', 140000))) ],
	'headers that are no object' => [ headers => q('[]') ],
	'headers that are no strings' => [ headers => q('{"a": 1}') ],
	'8 headers' => [ headers => q((SELECT jsonb_object_agg('a' || g, 'x') FROM generate_series(1, 8) g)) ],
	'NULL task_type' => [ task_type => q(NULL) ],
	'NULL payload' => [ payload => q(NULL) ]);
for my $what (sort keys %bad)
{
	my ($column, $value) = @{ $bad{$what} };
	my %args = (task_type => q('test'), $column => $value);
	my $args = join ', ', map { "$_ => $args{$_}" } sort keys %args;
	my $columns = join ', ', sort keys %args;
	my $values = join ', ', map { $args{$_} } sort keys %args;
	my $called = state_of($s1, "SELECT taskoutbox.enqueue($args)");

	like($called, qr/^(?:TO00\d|22004)$/, "C16: enqueue refuses: $what");
	my $inserted = state_of($s1, "INSERT INTO taskoutbox.task_outbox ($columns) VALUES ($values)");
	is($inserted, $what =~ /^NULL/ && $inserted eq '23502' ? '23502' : $called, "C16: and so does INSERT: $what");
}
like(copy('task_type, group_id', "test\ta b"), qr/^TO00\d$/, 'C16: COPY is checked as well');
is(value($s1, 'SELECT count(*) FROM taskoutbox.task_outbox'), 0, 'C16: nothing of that is there');

# A restore may bring the row before the row of its queue: it waits for the queue.
is(state_of($s1, q(SELECT taskoutbox.enqueue('x', queue => 'later'))), 'TO005', 'C16: enqueue refuses an unknown queue');
$first = value($s1, q(INSERT INTO taskoutbox.task_outbox (task_type, queue) VALUES ('direct', 'later') RETURNING id));
nothing_comes('C16: a row of a queue that does not exist goes to no other');
$s1->do(q(SELECT taskoutbox.create_queue('later')));
is(ids(receive($consumer, queue => 'later', wait => '5 s')), $first, 'C16: it is delivered when the queue is there');
$s1->do('DELETE FROM taskoutbox.task_outbox');

# P1 with synchronous_commit = off: a commit that a crash can undo is not published.
# The write-ahead log writer sleeps (see above), so that only the relay can have
# flushed it.
$s1->do('SET synchronous_commit = off');
my ($unflushed, $flushed);
for (1 .. 20)
{
	$s1->do('BEGIN');
	$first = enqueue($s1, undef);
	# The commit's record comes behind this.
	my $lsn = value($s1, 'SELECT pg_current_wal_insert_lsn()');
	$s1->do('COMMIT');
	my $pending = value($s1, 'SELECT pg_current_wal_flush_lsn() <= $1::pg_lsn', $lsn);
	($m) = receive($consumer, vt => '10 min', wait => '5 s');
	is($m->{id}, $first, 'P1: received');
	# skip a round in which somebody else flushed in between
	next unless $pending;
	$unflushed++;
	$flushed += value($s1, 'SELECT pg_current_wal_flush_lsn() > $1::pg_lsn', $lsn);
}
cmp_ok($unflushed, '>', 0, 'P1: commits were asynchronous');
is($flushed, $unflushed, 'P1: and on disk before their rows were given out');
my @delivered = map { $_->{id} } rows($s1, 'SELECT id FROM taskoutbox.task_outbox ORDER BY id');
crash($node);
$_ = session($node) for $s1, $consumer;
is( join(' ', map { $_->{id} } rows($s1, 'SELECT id FROM taskoutbox.task_outbox ORDER BY id')),
	"@delivered", 'P1: what was delivered survives a crash');

done_testing();
