# Launcher and relays: they come back after pg_terminate_backend without losing
# a message or a lease, follow CREATE and DROP EXTENSION at once, leave other
# databases alone, and do not hold up a shutdown.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $node = new_node('workers');
my $s1 = session($node);
my $s2 = session($node);

# Terminates a process and returns how long it took until $pid_now gives another
# one.
sub terminate
{
	my ($pid, $pid_now) = @_;
	my $start = mono();

	value($s1, 'SELECT pg_terminate_backend($1)', $pid);
	my $new = poll(sub { my $p = $pid_now->(); $p && $p != $pid ? $p : 0 }, 30)
	  or die "process $pid has no successor";
	return (mono() - $start, $new);
}

my $relay = sub { relay_pid($s1) };
my $launcher = sub { launcher_pid($s1) };

#
# The relay
#

my @group = map { enqueue($s1, 'g') } 1 .. 3;
my $loose = enqueue($s1, undef);
my ($m) = receive($s1, vt => '10 min', max => 1);
is($m->{id}, $group[0], 'the first of the group is in flight');

my $first_relay = $relay->();
my ($took, $pid) = terminate($first_relay, $relay);
cmp_ok($took, '<', 2, 'a terminated relay is back within 2 s (case C40)');
note("relay back after $took s");

# What is in flight is not given out again, and nothing of its group either.
is(ids(receive($s2, max => 10, wait => '2 s')), $loose, 'lease and group lock outlived the relay');
is(ids(receive($s2, max => 10, wait => '500 ms')), '', 'and nothing else is given out');
is(value($s1, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle}),
	1, 'the handle from before the restart deletes');
is(ids(receive($s2, max => 10, wait => '2 s')), "@group[1,2]", 'then the rest of the group comes');

# Rows that are committed while no relay runs; a receive that waits meanwhile.
my $waiting = start_query($s2, q(SELECT * FROM taskoutbox.receive(wait => '20 s')));
wait_until_waiting($s1, backend_pid($s2));
value($s1, 'SELECT pg_terminate_backend($1)', $relay->());
my $id = enqueue($s1, 'h');
is(ids(wait_query($waiting)), $id, 'a receive that waits over a restart of the relay gets its message');

# Many times in a row: the back-off of a relay that fails is not for one that is
# terminated now and then.
cmp_ok((terminate($relay->(), $relay))[0], '<', 10, 'terminated again soon: back') for 1 .. 3;

# What came back before the relay was terminated, and was not counted yet: the next
# relay counts it. (The relay is stopped, so that it cannot.)
sub restart_stopped_relay
{
	my ($meanwhile) = @_;
	my $old = $relay->();
	kill 'STOP', $old or die "cannot stop the relay: $!";
	$meanwhile->();
	value($s1, 'SELECT pg_terminate_backend($1)', $old);
	kill 'CONT', $old;
	poll(sub { my $p = $relay->(); $p && $p != $old }, 30) or die 'no new relay';
	return;
}
my @q = (queue => 'count');
$s1->do(q(SELECT taskoutbox.create_queue('count')));
$id = enqueue($s1, 'g', '{}', 'count');
($m) = receive($s2, @q, vt => '10 min', wait => '5 s');
is("$m->{id} $m->{receive_count}", "$id 1", 'received');
restart_stopped_relay(sub { value($s2, q(SELECT taskoutbox.change_visibility($1, '0')), $m->{receipt_handle}) });
($m) = receive($s2, @q, vt => '500 ms', wait => '5 s');
is("$m->{id} $m->{receive_count}", "$id 2", 'a receive that came back before the relay restarted is counted');
my $until = value($s1, q(SELECT clock_timestamp() + '500 ms'));
restart_stopped_relay(sub { poll(sub { value($s1, 'SELECT clock_timestamp() > $1::timestamptz', $until) }) });
($m) = receive($s2, @q, vt => '10 min', wait => '5 s');
is("$m->{id} $m->{receive_count}", "$id 3", 'so is one whose timeout ended before');
restart_stopped_relay(sub { value($s2, q(SELECT taskoutbox.change_visibility($1, '700 ms')), $m->{receipt_handle}) });
($m) = receive($s2, @q, vt => '10 min', wait => '5 s');
is("$m->{id} $m->{receive_count}", "$id 4", 'so is one whose timeout ends after the restart');
value($s2, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle});

# The same when only one of two that are out together has come back.
my @two = receive_together($s2, 2, @q, vt => '10 min');
restart_stopped_relay(sub { value($s2, q(SELECT taskoutbox.change_visibility($1, '0')), $two[1]{receipt_handle}) });
is(ids(receive($s2, @q, max => 10, wait => '300 ms')), '', 'nothing of the group while the first one is out');
value($s2, q(SELECT taskoutbox.change_visibility($1, '0')), $two[0]{receipt_handle});
is(join(' ', map { "$_->{id}:$_->{receive_count}" } drain($s2, @q)), "$two[0]{id}:2 $two[1]{id}:2", 'both are counted, and in order');

#
# The launcher
#

my $relay_before = $relay->();
($took, $pid) = terminate($launcher->(), $launcher);
cmp_ok($took, '<', 2, 'a terminated launcher is back within 2 s');
note("launcher back after $took s");
$id = enqueue($s1, 'i');
is(ids(receive($s2, wait => '2 s')), $id, 'the queue worked on');
is($relay->(), $relay_before, 'the relay was not restarted');
is( value($s1, q(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'taskoutbox relay')),
	1, 'and has no second one beside it');
($took, $pid) = terminate($relay->(), $relay);
cmp_ok($took, '<', 10, 'the new launcher looks after the relay that it found');
is( value($s1, q(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'taskoutbox relay')),
	1, 'one relay');

# Both at once.
my @both = ($launcher->(), $relay->());
my $start = mono();
value($s1, 'SELECT count(pg_terminate_backend(p)) FROM unnest($1::int[]) p', \@both);
ok( poll(
		sub {
			my ($l, $r) = ($launcher->(), $relay->());
			$l && $r && $l != $both[0] && $r != $both[1];
		},
		30),
	'launcher and relay terminated together are back');
note('both back after ' . (mono() - $start) . ' s');
$id = enqueue($s1, 'k');
is(ids(receive($s2, wait => '2 s')), $id, 'and work');

#
# Databases
#

$s1->do('CREATE DATABASE second');
$s1->do('CREATE DATABASE plain');
my $c = session($node, dbname => 'second');
my $ours = q(SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^taskoutbox' AND datname = $1);

$c->do('BEGIN');
$c->do('CREATE EXTENSION taskoutbox');
$c->do('ROLLBACK');
$c->do('CREATE EXTENSION taskoutbox');
$start = mono();
ok(poll(sub { relay_pid($c) }, 30), 'CREATE EXTENSION in another database brings a relay');
$took = mono() - $start;
cmp_ok($took, '<', 2, 'at once');
note("relay there after $took s");
$id = enqueue($c, 'g');
is(ids(receive($c, wait => '2 s')), $id, 'it works there');
is(ids(receive($s2, max => 10, wait => '200 ms')), '', 'and does not mix databases up');
isnt(relay_pid($c), $relay->(), 'each database has its own relay');
is( join(' ', map { $_->{database} } rows($s1, q(SELECT database FROM taskoutbox.relay_status WHERE state = 'running' ORDER BY 1))),
	'postgres second', 'relay_status shows both');

# A database without the extension: sampled over a while, since a look at it would
# be short.
my $seen = 0;
my $end = mono() + 2;
$seen += value($s1, $ours, 'plain') while mono() < $end;
is($seen, 0, 'a database without the extension has no connection of ours');
is(state_of($s1, 'DROP DATABASE plain'), '00000', 'and can be dropped');

# A rolled-back DROP changes nothing.
$c->do('BEGIN');
$c->do('DROP EXTENSION taskoutbox');
$c->do('ROLLBACK');
$id = enqueue($c, 'g2');
is(ids(receive($c, wait => '2 s')), $id, 'a rolled-back DROP EXTENSION changes nothing');

$c->do('DROP EXTENSION taskoutbox');
$start = mono();
ok(poll(sub { value($s1, $ours, 'second') == 0 }, 30), 'DROP EXTENSION ends the relay');
$took = mono() - $start;
cmp_ok($took, '<', 2, 'at once');
note("relay gone after $took s");
ok( poll(
		sub {
			value($s1, q(SELECT count(*) FROM taskoutbox.relay_status WHERE database = 'second' AND state = 'running')) == 0;
		}),
	'relay_status says so');

$c->do('CREATE EXTENSION taskoutbox');
ok(poll(sub { relay_pid($c) }, 30), 'CREATE EXTENSION again brings it back');
$id = enqueue($c, 'g');
($m) = receive($c, wait => '2 s');
is($m->{id}, $id, 'a new message comes');
is(value($c, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle}), 1, 'and is deleted');
is(ids(receive($c, max => 10, wait => '200 ms')), '', 'nothing of the dropped one is left');
$c->disconnect;

#
# Shutdown
#

$id = enqueue($s1, 'last');
receive($s1, queue => 'default', max => 10, vt => '10 min');
my @sleepers = map { session($node) } 1 .. 3;
my @queries = map { start_query($_, q(SELECT * FROM taskoutbox.receive(wait => '20 s'))) } @sleepers;
wait_until_waiting($s1, map { backend_pid($_) } @sleepers);
my $busy = session($node);
$busy->do('BEGIN');
enqueue($busy, 'never');

$start = mono();
$node->stop('fast');
$took = mono() - $start;
cmp_ok($took, '<', 3, 'fast shutdown with receives waiting takes less than 3 s');
note("stopped after $took s");
for my $q (@queries)
{
	ok(!eval { wait_query($q); 1 }, 'a waiting receive was ended by the shutdown');
}
unlike(slurp_file($node->logfile), qr/PANIC|signal 6|signal 11|TRAP:/, 'nothing crashed so far');

$node->start;
wait_for_relay($node);
$s1 = session($node);
$s2 = session($node);
my @left = map { $_->{id} } rows($s1, 'SELECT id FROM taskoutbox.task_outbox ORDER BY id');
ok((grep { $_ == $id } @left), 'what was in flight is there after a start');
is(ids(sort { $a->{id} <=> $b->{id} } drain($s2)), "@left", 'everything that was not deleted is delivered');

done_testing();
