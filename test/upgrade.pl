# pg_upgrade of a cluster in which there is work, from the major whose server is in
# $OLD_SERVER (test/upgrade brings it): all is there, once, and waits as a copy until it
# is confirmed, since the cluster has another system identifier; then the work goes on.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $conf = "max_worker_processes = 30\n";
my $init = [ extra => ['--data-checksums'] ];
my $old = new_node('old', conf => $conf, init => $init, install_path => $ENV{OLD_SERVER});
my $dbh = session($old);
one_of_each($dbh);
$dbh->do('CREATE ROLE app');
$dbh->do('GRANT taskoutbox_producer TO app');
my ($held) = receive($dbh, wait => '5 s');
my $in_order = q(SELECT string_agg(id::text, ' ' ORDER BY id) FROM taskoutbox.task_outbox WHERE task_type = 'waiting');
my $waiting = value($dbh, $in_order);
my $last = value($dbh, 'SELECT last_value FROM taskoutbox.task_outbox_id_seq');
my $original = contents($dbh);
is(() = $original =~ /^task /mg, 23, 'there is something to lose');
is(() = $original =~ /^letter /mg, 2, 'dead letters, too');
$dbh->disconnect;
$old->stop;

# The new server runs without a database of ours, as it would before an upgrade.
my $new = new_node('new', conf => $conf, init => $init, extension => 0);
note('from ' . $old->{_pg_version} . ' to ' . $new->{_pg_version});
$new->stop;

my $dir = PostgreSQL::Test::Utils::tempdir();
chdir $dir or die;
ok(run_log([ 'pg_upgrade', '--retain', '--no-sync',
		'-b', "$ENV{OLD_SERVER}/bin", '-B', $new->config_data('--bindir'),
		'-d', $old->data_dir, '-D', $new->data_dir,
		'-p', $old->port, '-P', $new->port, '-s', $new->host ]),
	'pg_upgrade') or die;
my @logs = glob($new->data_dir . '/pg_upgrade_output.d/*/log/pg_upgrade_server.log');
is(@logs, 1, 'its log is kept');
like(slurp_file($logs[0]), qr/ready to accept connections/, 'and that of its servers');
unlike(slurp_file($logs[0]), qr/taskoutbox (?:launcher|relay)|LOG:  taskoutbox/, 'nothing of ours ran meanwhile');

my $offset = -s $new->logfile;
$new->start;
wait_for_relay($new, 'postgres');
my $c = session($new);
is(contents($c), $original, 'all is there, once');

# It is a copy, and gives out what is asked for.
my $status = sub { return (rows($c, 'SELECT confirmed, hint FROM taskoutbox.relay_status WHERE database = current_database()'))[0] };
ok(poll(sub { defined $status->()->{confirmed} }), 'the relay knows whose tasks these are');
is($status->()->{confirmed}, 0, 'not those of this cluster');
like($status->()->{hint}, qr/is a copy.*confirm\(\)/, 'it says so, and what to do');
$new->wait_for_log(qr/database "postgres" is a copy, and delivers nothing by itself/, $offset);
is(scalar(receive($c, queue => 'once')), 0, 'the blocked group waits');
is(scalar(receive($c, queue => 'paused')), 0, 'the paused queue is paused');
my ($first) = receive($c, wait => '5 s');
is($first->{id}, $held->{id}, 'who asks gets the first task, which was in flight');
is($first->{receive_count}, 1, 'and is not counted twice');
value($c, q(SELECT taskoutbox.change_visibility($1, '0')), $first->{receipt_handle});

is(value($c, q(SELECT duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'd1'))), 1, 'ids are taken');
$c->do('SET ROLE app');
is(value($c, q(SELECT id FROM taskoutbox.enqueue('new', queue => 'lost'))) - $last, 2, 'ids go on where they were, and roles have their rights');
$c->do('RESET ROLE');

# Its own from now on, for every relay that starts
$c->do('SELECT taskoutbox.confirm()');
ok(poll(sub { $status->()->{confirmed} }), 'confirmed');
is($status->()->{hint}, undef, 'and nothing is wrong any more');
$c->disconnect;
$offset = -s $new->logfile;
$new->restart;
wait_for_relay($new, 'postgres');
$c = session($new);
ok(poll(sub { defined $status->()->{confirmed} }), 'the next relay knows, too');
is($status->()->{confirmed}, 1, 'it is confirmed');
unlike(slurp_file($new->logfile, $offset), qr/is a copy/, 'and no copy');

# The work goes on.
is(value($c, q(SELECT taskoutbox.cancel(id) FROM taskoutbox.task_outbox WHERE task_type = 'delayed')), 1, 'the delayed task was not delivered');
is(ids(drain($c)), $waiting, 'all that waited comes, once, in the old order');
is(ids(drain($c, queue => 'lost')), $last + 2, 'so does the new task');
is(value($c, q(SELECT taskoutbox.redrive('once'))), 1, 'the group can be unblocked');
is(join(' ', map { $_->{task_type} } drain($c, queue => 'once')), 'dead blocked', 'and comes in its order');
$c->do(q(SELECT taskoutbox.resume_queue('paused')));
is(join(' ', map { $_->{task_type} } drain($c, queue => 'paused')), 'of the paused queue', 'the paused queue can be resumed');
is(value($c, 'SELECT count(*) FROM taskoutbox.task_outbox'), 0, 'nothing is left');

done_testing();
