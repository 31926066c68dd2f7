# Commands that need a database, or the extension, for themselves: our workers make
# way for them at once, and come back; elsewhere nothing is lost meanwhile.  Cases
# C44, C45.  COMMANDS: how many in a row (default 50).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $node = new_node('commands', conf => q(
max_worker_processes = 30
synchronous_commit = off
allow_in_place_tablespaces = on
));
my $admin = session($node);
my %took;

# Runs a command and remembers how long it took.
sub command
{
	my ($what, $sql, $dbh) = @_;
	my $start = mono();
	my $state = state_of($dbh || $admin, $sql);
	my $took = mono() - $start;
	$took{$what} = $took if $took > ($took{$what} // 0);
	return $state;
}

sub make_database
{
	my ($name) = @_;
	$admin->do("CREATE DATABASE $name");
	my $dbh = session($node, dbname => $name);
	$dbh->do('CREATE EXTENSION taskoutbox');
	wait_for_relay($node, $name);
	return $dbh;
}

# Load in this database: enqueue, receive and delete, until told to stop.
$admin->do(q(
	CREATE TABLE stop (); CREATE TABLE done (id bigint);
	CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
	BEGIN
		WHILE to_regclass('go_on') IS NOT NULL LOOP
			PERFORM taskoutbox.enqueue('load', group_id => 'g' || i) FROM generate_series(1, 10) i;
			COMMIT;
			INSERT INTO done SELECT m.id FROM taskoutbox.receive(max_messages => 10, wait => '1 s') m
				WHERE taskoutbox.delete(m.receipt_handle);
			COMMIT;
		END LOOP;
	END $$;
	CREATE TABLE go_on ()));
my $worker = session($node);
my $work = start_query($worker, 'CALL work()');
# And a receive that waits in another database.
my $elsewhere = make_database('elsewhere');
my $waiting = start_query($elsewhere, q(SELECT count(*) FROM taskoutbox.receive(wait => '20 s')));
wait_until_waiting($admin, backend_pid($elsewhere));

# Each command, once, with tasks in the database.
my $own = make_database('own');
value($own, q(SELECT count(taskoutbox.enqueue('x')) FROM generate_series(1, 100)));
my $owner_pid = relay_pid($admin, 'own');
$own->disconnect;
is(command('CREATE DATABASE ... TEMPLATE', 'CREATE DATABASE copy TEMPLATE own'), '00000', 'CREATE DATABASE ... TEMPLATE');
wait_for_relay($node, 'own');
wait_for_relay($node, 'copy');
my ($status) = rows($admin, q(SELECT confirmed, hint FROM taskoutbox.relay_status WHERE database = 'copy'));
is($status->{confirmed}, 0, 'the copy knows that it is one');
like($status->{hint}, qr/is a copy/, 'and says so');
like(slurp_file($node->logfile), qr/database "copy" is a copy/, 'in the log, too');
is(value($admin, q(SELECT confirmed FROM taskoutbox.relay_status WHERE database = 'own')), 1, 'the original is none');
is(command('RENAME', 'ALTER DATABASE copy RENAME TO renamed'), '00000', 'RENAME');
wait_for_relay($node, 'renamed');
$admin->do("CREATE TABLESPACE space LOCATION ''");
is(command('SET TABLESPACE', 'ALTER DATABASE renamed SET TABLESPACE space'), '00000', 'SET TABLESPACE');
wait_for_relay($node, 'renamed');
my $renamed = session($node, dbname => 'renamed');
is(scalar(receive($renamed, max => 100, wait => '5 s')), 100, 'and all is there, to be received');
$renamed->do('SELECT taskoutbox.confirm()');
ok(poll(sub { value($admin, q(SELECT confirmed FROM taskoutbox.relay_status WHERE database = 'renamed')) }), 'confirmed');

# What fails brings the relay back, and who may not do it stops no relay.
my $pid = wait_for_relay($node, 'renamed');
is(state_of($admin, 'ALTER DATABASE renamed RENAME TO never'), '55006', 'a RENAME that fails: somebody is connected');
ok(poll(sub { (relay_pid($admin, 'renamed') // $pid) != $pid }), 'the relay is back');
$renamed->disconnect;
$pid = relay_pid($admin, 'renamed');
is(state_of($admin, 'ALTER DATABASE renamed RENAME TO own'), '42P04', 'another one: the name is taken');
ok(poll(sub { (relay_pid($admin, 'renamed') // $pid) != $pid }), 'the relay is back');
$pid = relay_pid($admin, 'renamed');
$admin->do('CREATE ROLE mallory LOGIN CREATEDB');
my $mallory = session($node, user => 'mallory');
is(state_of($mallory, 'ALTER DATABASE renamed RENAME TO mine'), '42501', 'mallory may not rename it');
is(state_of($mallory, 'CREATE DATABASE mine TEMPLATE renamed'), '42501', 'nor copy it');
is(relay_pid($admin, 'renamed'), $pid, 'and its relay did not even notice');

# DROP DATABASE, also with a receive that waits in it
my $victim = session($node, dbname => 'renamed');
rows($victim, 'SELECT count(*) FROM taskoutbox.receive(max_messages => 1000)');
my $sth = start_query($victim, q(SELECT count(*) FROM taskoutbox.receive(wait => '20 s')));
wait_until_waiting($admin, backend_pid($victim));
is(command('DROP DATABASE', 'DROP DATABASE renamed WITH (FORCE)'), '00000', 'DROP DATABASE WITH (FORCE)');
is(command('DROP DATABASE', 'DROP DATABASE own'), '00000', 'DROP DATABASE');

# The extension, under load, in all the ways in which it can go
my @ways = ('DROP EXTENSION taskoutbox CASCADE', 'DROP SCHEMA taskoutbox CASCADE', 'DROP OWNED BY keeper CASCADE');
$admin->do('CREATE ROLE keeper SUPERUSER LOGIN');
my $kept = make_database('kept');
$kept->do('DROP SCHEMA taskoutbox CASCADE');
for my $way (@ways)
{
	my $keeper = session($node, dbname => 'kept', user => 'keeper');
	$keeper->do('CREATE EXTENSION taskoutbox');
	wait_for_relay($node, 'kept');
	my $loader = session($node, dbname => 'kept');
	my $load = start_query($loader, q(DO $$ BEGIN FOR i IN 1 .. 100000 LOOP
		PERFORM taskoutbox.enqueue('x'); PERFORM taskoutbox.receive(); COMMIT; END LOOP; END $$));
	ok(poll(sub { value($kept, q(SELECT last_value FROM taskoutbox.task_outbox_id_seq)) > 50 }), "$way: under load");
	is(command('DROP of the extension', $way, $keeper), '00000', $way);
	ok(!eval { wait_query($load); 1 }, "$way: the load ended with an error");
	ok(poll(sub { !defined value($admin, q(SELECT pid FROM taskoutbox.relay_status WHERE database = 'kept')) }), "$way: the relay left");
	$loader->disconnect;
	$keeper->disconnect;
	$kept->do('DROP SCHEMA IF EXISTS taskoutbox CASCADE');
}
$kept->disconnect;

# Many in a row, in random order
my %exists = map { $_ => 1 } qw(kept);
my $commands = $ENV{COMMANDS} || 50;
my $failed = 0;
srand($ENV{COMMANDS_SEED} || 1);
$admin->do('DROP DATABASE kept');
make_database('d0')->disconnect;
my @databases = ('d0');
my $n = 0;
for (1 .. $commands)
{
	my $db = $databases[ rand @databases ];
	my $x = rand();
	$n++;
	if ($x < .4 && @databases < 5)
	{
		$failed++ if command('CREATE DATABASE ... TEMPLATE', "CREATE DATABASE d$n TEMPLATE $db") ne '00000';
		push @databases, "d$n";
	}
	elsif ($x < .6)
	{
		$failed++ if command('RENAME', "ALTER DATABASE $db RENAME TO d$n") ne '00000';
		@databases = ((grep { $_ ne $db } @databases), "d$n");
	}
	elsif ($x < .7)
	{
		$failed++ if command('SET TABLESPACE', "ALTER DATABASE $db SET TABLESPACE " . (rand() < .5 ? 'space' : 'pg_default')) ne '00000';
	}
	elsif ($x < .85 || @databases < 2)
	{
		my $dbh = session($node, dbname => $db);
		$failed++ if command('EXTENSION', 'DROP EXTENSION IF EXISTS taskoutbox', $dbh) ne '00000';
		$failed++ if command('EXTENSION', 'CREATE EXTENSION taskoutbox', $dbh) ne '00000';
		value($dbh, q(SELECT count(taskoutbox.enqueue('x')) FROM generate_series(1, 10)));
		$dbh->disconnect;
		# Our own session's end is not instant for others.
		poll(sub { value($admin, 'SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = $$client backend$$', $db) == 0 });
	}
	else
	{
		$failed++ if command('DROP DATABASE', "DROP DATABASE $db") ne '00000';
		@databases = grep { $_ ne $db } @databases;
	}
}
is($failed, 0, "$commands commands in a row, none failed");
wait_for_relay($node, $_) for @databases;
ok(1, 'each database that is left has its relay');

# Elsewhere nothing was lost, and nobody disturbed.
ok(query_ready($waiting) == 0 || (wait_query($waiting))[0]{count} == 0, 'the receive elsewhere waits, or waited its time');
$admin->do('DROP TABLE go_on');
wait_query($work);
is(value($admin, q(SELECT count(*) FROM done)) + value($admin, 'SELECT count(*) FROM taskoutbox.task_outbox'),
	value($admin, 'SELECT last_value FROM taskoutbox.task_outbox_id_seq'), 'the load: each task was done once, or is there');
is(value($admin, 'SELECT count(*) - count(DISTINCT id) FROM done'), 0, 'none twice');
cmp_ok(value($admin, 'SELECT count(*) FROM done'), '>', 0, value($admin, 'SELECT count(*) FROM done') . ' were done');
diag(join ', ', map { sprintf('%s at most %.2f s', $_, $took{$_}) } sort keys %took);
cmp_ok($took{$_}, '<', 5, "$_: at once") for sort keys %took;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal [^9]/, 'no crash');

done_testing();
