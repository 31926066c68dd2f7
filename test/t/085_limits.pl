# What is bounded stays usable at its bound: messages in flight, queues, worker
# slots, ids; and what was dropped or truncated does not use it up.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

# A unit in the file, too: such a setting was thrown away at the start once.
my $node = new_node('limits', conf => q(
taskoutbox.max_in_flight = 100
taskoutbox.max_queues = 3
taskoutbox.max_message_bytes = '512kB'
));
my $dbh = session($node);

is(value($dbh, 'SHOW taskoutbox.max_message_bytes'), '512kB', 'a setting with a unit is read at the start');

# Takes all leases of the server from a database of its own.
sub fill
{
	my ($db) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION taskoutbox');
	wait_for_relay($node, $db);

	my $other = session($node, dbname => $db);
	$other->do(q(SELECT count(taskoutbox.enqueue('fill')) FROM generate_series(1, 200)));
	my @taken = receive($other, max => 100, vt => '12 h', wait => '10 s');
	is(scalar @taken, 100, "$db: as many in flight as there can be");
	return ($other, @taken);
}

# A new task, received by someone who waits for it.
sub can_receive
{
	my ($name) = @_;
	my $id = enqueue($dbh);
	my @m = receive($dbh, wait => '10 s');

	is(ids(@m), $id, $name);
	value($dbh, 'SELECT taskoutbox.delete($1)', $m[0]{receipt_handle}) if @m;
}

{
	my ($other, @taken) = fill('filled');
	my $warnings = 0;
	local $SIG{__WARN__} = sub { $warnings++ if $_[0] =~ /too many messages are in flight/ };

	$dbh->{PrintWarn} = 1;
	my $id = enqueue($dbh);
	is(scalar receive($dbh), 0, 'full: a receive gets nothing');
	is($warnings, 1, '... and is told why');

	# One that waits gets the first place that is free.
	my $waiting = session($node);
	my $query = start_query($waiting, q(SELECT * FROM taskoutbox.receive(wait => '20 s')));
	wait_until_waiting($dbh, backend_pid($waiting));
	ok(!query_ready($query), 'one that waits does not return at once');
	$other->do('SELECT taskoutbox.delete($1)', undef, $taken[0]{receipt_handle});
	my ($m) = wait_query($query);
	is($m->{id}, $id, '... and gets a message when there is room');
	value($dbh, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle});
	is(scalar receive($other, vt => '12 h', wait => '10 s'), 1, 'full again');

	$other->do('DROP EXTENSION taskoutbox');
	can_receive('DROP EXTENSION frees what was in flight');
	$other->disconnect;
}
{
	my ($other) = fill('gone');
	$other->disconnect;
	$node->safe_psql('postgres', 'DROP DATABASE gone');
	can_receive('so does DROP DATABASE');
}
{
	my ($other) = fill('cut');
	$other->do('TRUNCATE taskoutbox.task_outbox');
	can_receive('so does TRUNCATE');
	$other->disconnect;
}
{
	my ($other) = fill('deleted');
	$other->do('DELETE FROM taskoutbox.task_outbox');
	can_receive('so does DELETE by the owner, if room is needed');
	$other->disconnect;
}
# An id that comes again is another task.
{
	enqueue($dbh);
	$dbh->do('TRUNCATE taskoutbox.task_outbox RESTART IDENTITY');
	my $old = enqueue($dbh);
	my ($m) = receive($dbh, vt => '10 min', wait => '10 s');
	is($m->{id}, $old, 'in flight before RESTART IDENTITY');
	$dbh->do('TRUNCATE taskoutbox.task_outbox RESTART IDENTITY');
	is(enqueue($dbh), $old, 'the id comes again');
	is(state_of($dbh, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle}), 'TO012',
		'the old receipt handle does not delete it');
	is(ids(receive($dbh, wait => '10 s', vt => '10 min')), $old, 'it is delivered');

	# ... and another dead letter.
	$dbh->do(q(SELECT taskoutbox.alter_queue('default', max_receive_count => 1)));
	for my $n (1, 2)
	{
		$dbh->do('TRUNCATE taskoutbox.task_outbox RESTART IDENTITY');
		enqueue($dbh);
		my ($bad) = receive($dbh, wait => '10 s');
		$dbh->do(q(SELECT taskoutbox.change_visibility($1, '0')), undef, $bad->{receipt_handle});
		ok( poll(sub { value($dbh, 'SELECT count(*) FROM taskoutbox.dead_letter') == $n }),
			"dead letter $n of the same id");
	}
	$dbh->do(q(SELECT taskoutbox.alter_queue('default', max_receive_count => 5)));
}

# Queues: the relay has room for 3, "default" included.
{
	my $crashes = -s $node->logfile;

	$dbh->do(q(SELECT taskoutbox.create_queue('a')));
	is(state_of($dbh, q(INSERT INTO taskoutbox.queue (name) VALUES ('b'), ('c'))), 'TO015',
		'no more queues by INSERT either');
	is(state_of($dbh, q(SELECT taskoutbox.create_queue('b'))), '00000', 'the third');

	# New names at once, while the relay knows the old ones.
	$dbh->do(q(UPDATE taskoutbox.queue SET name = name || '2' WHERE name <> 'default'));
	ok(poll(sub { value($dbh, q(SELECT relay_running FROM taskoutbox.queue_metrics WHERE queue = 'a2')) }),
		'renamed queues are followed');
	$dbh->do(q(BEGIN; DELETE FROM taskoutbox.queue WHERE name <> 'default'; SELECT taskoutbox.create_queue('new'); COMMIT));
	$dbh->do(q(SELECT taskoutbox.enqueue('x', queue => 'new')));
	is(scalar receive($dbh, queue => 'new', wait => '10 s'), 1, 'queues replaced in one transaction');
	$dbh->do(q(BEGIN; DROP EXTENSION taskoutbox; CREATE EXTENSION taskoutbox;
		SELECT taskoutbox.create_queue('other'), taskoutbox.create_queue('another'); COMMIT));
	$dbh->do(q(SELECT taskoutbox.enqueue('x', queue => 'other')));
	is(scalar receive($dbh, queue => 'other', wait => '10 s'), 1, 'an installation replaced in one transaction');
	unlike(slurp_file($node->logfile, $crashes), qr/terminated by signal/, 'nobody crashed');
}
$node->stop;

# Without a free worker slot the status says what to do, and it is done at once.
{
	my $small = new_node('small', extension => 0, conf => 'max_worker_processes = 2');
	my $s = session($small);

	$s->do('CREATE EXTENSION taskoutbox');
	ok( poll(
			sub {
				(value($s, 'SELECT hint FROM taskoutbox.relay_status') || '') =~ /max_worker_processes/;
			}),
		'no worker slot: relay_status names the setting');
	$s->do(q(SELECT taskoutbox.enqueue('x')));
	$s->disconnect;
	$small->append_conf('postgresql.conf', 'max_worker_processes = 8');
	$small->restart;
	wait_for_relay($small);
	is(scalar receive(session($small), wait => '10 s'), 1, '... and what was enqueued meanwhile is delivered');
	$small->stop;
}

done_testing();
