# Rows that wait, and messages in flight, survive a crash of the server and the
# promotion of a standby (case C17; also what a standby says and does before).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $node = new_node('primary', init => [ allows_streaming => 1 ], conf => 'shared_buffers = 32MB');
my $dbh = session($node);

# A crash with rows waiting, one in flight, one being deleted by an open transaction,
# one prepared, one not committed.
my @group = map { enqueue($dbh, 'g') } 1 .. 3;
my $loose = enqueue($dbh, undef);
my ($m) = receive($dbh, vt => '12 h', max => 1, wait => '5 s');
is($m->{id}, $group[0], 'the head of the group is in flight');
my $open = session($node);
my ($n) = receive($open, vt => '12 h', max => 1, wait => '5 s');
is($n->{id}, $loose, 'another message too');
$open->do('BEGIN');
is(value($open, 'SELECT taskoutbox.delete($1)', $n->{receipt_handle}), 1, 'and is being deleted');
enqueue($open, 'g');
my $prepared = session($node);
$prepared->do('BEGIN');
my $p = enqueue($prepared, 'p');
$prepared->do("PREPARE TRANSACTION 'p'");

crash($node);
$dbh = session($node);
is( value($dbh, q(SELECT string_agg(id::text, ' ' ORDER BY id) FROM taskoutbox.task_outbox)),
	"@group $loose", 'after a crash: committed rows are there, and no others');
my @again = drain($dbh);
is(join(' ', sort { $a <=> $b } map { $_->{id} } @again),
	"@group $loose", 'what was in flight is given out again, with what waited');
is(ids(grep { defined $_->{group_id} } @again), "@group", 'in order');
is(state_of($dbh, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle}), 'TO012',
	'a handle from before the crash is stale');
is(value($dbh, 'SELECT taskoutbox.delete($1, true)', $m->{receipt_handle}), 0, 'or nothing, with missing_ok');
$dbh->do("COMMIT PREPARED 'p'");
is(ids(drain($dbh)), $p, 'a transaction prepared before the crash is delivered when it commits');

# Two of a group are in flight together. The second one came back, and was
# counted in its row; the first did not. After a crash the first comes first.
my @two = receive_together($dbh, 2, vt => '12 h');
value($dbh, q(SELECT taskoutbox.change_visibility($1, '0', error => 'no')), $two[1]{receipt_handle});
poll(sub { value($dbh, 'SELECT receive_count FROM taskoutbox.task_outbox WHERE id = $1', $two[1]{id}) }, 2);
crash($node);
$dbh = session($node);
is(ids(drain($dbh)), ids(@two), 'what came back of a batch does not pass the rest of it after a crash');

# The same when both came back, and the first one's row is locked by somebody, so
# that it cannot be counted yet.
@two = receive_together($dbh, 2, vt => '12 h');
my $locker = session($node);
$locker->do('BEGIN');
value($locker, 'SELECT id FROM taskoutbox.task_outbox WHERE id = $1 FOR UPDATE', $two[0]{id});
value($dbh, q(SELECT taskoutbox.change_visibility($1, '0')), $_->{receipt_handle}) for @two;
# The relay has looked when it has answered.
value($dbh, 'SELECT count(*) FROM taskoutbox.queue_metrics');
crash($node);
$dbh = session($node);
is(ids(drain($dbh)), ids(@two), 'nor when the first of them could not be counted');

# A crash of the relay itself, and of the launcher, is a crash of the server.
for my $who (qw(relay launcher))
{
	my $pid = $who eq 'relay' ? relay_pid($dbh) : launcher_pid($dbh);
	my $offset = -s $node->logfile;
	my $id = enqueue($dbh, "killed-$who");
	kill 'KILL', $pid;
	$node->wait_for_log(qr/database system is ready to accept connections/, $offset);
	wait_for_relay($node);
	$dbh = session($node);
	is(ids(drain($dbh)), $id, "kill -9 of the $who: the row is delivered");
}

# Immediate stop and start.
my $id = enqueue($dbh, 'stop');
$node->stop('immediate');
$node->start;
wait_for_relay($node);
$dbh = session($node);
is(ids(drain($dbh)), $id, 'immediate stop: the row is delivered');

# A standby (case C55).
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

@group = map { enqueue($dbh, 'g') } 1 .. 3;
$loose = enqueue($dbh, undef);
my @taken = map { receive($dbh, vt => '12 h', wait => '5 s') } 1 .. 2;
is(scalar(@taken), 2, 'two are in flight on the primary');
$node->wait_for_catchup($standby);

my $sb = session($standby);
is(value($sb, 'SELECT count(*) FROM taskoutbox.task_outbox'), 4, 'the standby has the rows');
is(value($sb, q(SELECT count(*) FROM taskoutbox.relay_status WHERE state = 'running')), 0, 'and no relay');
is(value($sb, q(SELECT count(*) FROM taskoutbox.relay_status)), 1, 'its relay_status says so');
is(value($sb, q(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'taskoutbox relay')), 0, 'no worker is connected');
is(state_of($sb, q(SELECT taskoutbox.enqueue('test'))), '25006', 'enqueue on a standby: read-only');
like(state_of($sb, q(SELECT * FROM taskoutbox.receive())), qr/^(?:25006|55000)$/, 'receive on a standby is refused');
is(state_of($sb, q(SELECT * FROM taskoutbox.queue_metrics)), '00000', 'the views answer');

$node->stop('fast');
$standby->promote;
my $start = mono();
wait_for_relay($standby);
cmp_ok(mono() - $start, '<', 2, 'promotion brings the relay, without a restart, within 2 s');
my @all = drain($sb);
is(join(' ', sort { $a <=> $b } map { $_->{id} } @all),
	"@group $loose", 'after promotion every row is delivered, also what the old primary had in flight');
is(join(' ', map { $_->{id} } grep { defined $_->{group_id} } @all), "@group", 'in order');
$id = enqueue($sb, 'g');
is(ids(receive($sb, wait => '5 s')), $id, 'and new ones too, with new ids');
cmp_ok($id, '>', $loose, 'above the old ones');

unlike(slurp_file($_->logfile), qr/PANIC|signal 6|signal 11|TRAP:/, $_->name . ': no crash of our making')
  for $node, $standby;

done_testing();
