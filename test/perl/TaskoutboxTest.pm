# What the TAP tests of taskoutbox share: private servers with the library
# preloaded, sessions through DBI (several at a time from one process, with
# SQLSTATEs), and ways to wait for a condition instead of sleeping.

package TaskoutboxTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Carp;
use DBI;
use DBD::Pg qw(:async);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC usleep);

our @EXPORT = qw(
  new_node
  session
  rows
  value
  state_of
  start_query
  wait_query
  query_ready
  backend_pid
  mono
  poll
  wait_for_relay
  relay_pid
  launcher_pid
  wait_until_waiting
  create_controller_role
  receive
  ids
  enqueue
  receive_together
  drain
  one_of_each
  contents
  crash
);

# How long a wait for a condition may last before the test gives up.  Nothing
# that works takes anywhere near that long.
our $patience = $PostgreSQL::Test::Utils::timeout_default;

# Seconds on a clock that nobody sets, the same for all processes of the host.
sub mono
{
	return clock_gettime(CLOCK_MONOTONIC);
}

# A started server with the extension in database postgres and its relay
# running.  Options: conf => lines for postgresql.conf, init => [arguments of
# init], extension => 0 to leave CREATE EXTENSION out, install_path => where a
# server of another major is.
sub new_node
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name,
		defined $opt{install_path} ? (install_path => $opt{install_path}) : ());

	$node->init(@{ $opt{init} || [] });

	# log_line_prefix has %b, so that the log says which worker speaks.
	# restart_after_crash is on in real life, and off in this framework.
	$node->append_conf('postgresql.conf', qq(
shared_preload_libraries = 'taskoutbox'
max_prepared_transactions = 50
max_connections = 60
restart_after_crash = on
log_line_prefix = '%m [%p] %b %q%a '
log_statement = none
));
	$node->append_conf('postgresql.conf', $opt{conf}) if defined $opt{conf};
	$node->start;

	if (!defined $opt{extension} || $opt{extension})
	{
		$node->safe_psql('postgres', 'CREATE EXTENSION taskoutbox');
		wait_for_relay($node, 'postgres');
	}
	return $node;
}

# A DBI session: every error is an exception, nothing is printed.
sub session
{
	my ($node, %opt) = @_;
	my $db = defined $opt{dbname} ? $opt{dbname} : 'postgres';
	my $user = defined $opt{user} ? $opt{user} : (getpwuid($<))[0];
	my $app = defined $opt{app} ? $opt{app} : 'taptest';

	return DBI->connect(
		sprintf("dbi:Pg:dbname=%s;host=%s;port=%s;application_name=%s",
			$db, $node->host, $node->port, $app),
		$user, '',
		{
			RaiseError => 1,
			PrintError => 0,
			PrintWarn => 0,
			AutoCommit => 1,
			AutoInactiveDestroy => 1,
			%{ $opt{attr} || {} }
		});
}

# All rows as hashes.
sub rows
{
	my ($dbh, $sql, @bind) = @_;
	return @{ $dbh->selectall_arrayref($sql, { Slice => {} }, @bind) };
}

# The first column of the first row.
sub value
{
	my ($dbh, $sql, @bind) = @_;
	return ($dbh->selectrow_array($sql, undef, @bind))[0];
}

# The SQLSTATE with which a statement fails, 00000 if it does not.
sub state_of
{
	my ($dbh, $sql, @bind) = @_;
	my $ok = eval {
		my $sth = $dbh->prepare($sql);
		$sth->execute(@bind);
		$sth->fetchall_arrayref if $sth->{NUM_OF_FIELDS};
		1;
	};
	return '00000' if $ok;
	return $dbh->state || 'no SQLSTATE';
}

sub backend_pid
{
	my ($dbh) = @_;
	return $dbh->{pg_pid};
}

# Sends a statement and does not wait for it: see wait_query.
sub start_query
{
	my ($dbh, $sql, @bind) = @_;
	my $sth = $dbh->prepare($sql, { pg_async => PG_ASYNC });
	$sth->execute(@bind);
	return $sth;
}

sub query_ready
{
	my ($sth) = @_;
	return $sth->{Database}->pg_ready;
}

# The rows of a statement that start_query sent.  Throws its error.
sub wait_query
{
	my ($sth) = @_;
	poll(sub { query_ready($sth) }) or croak "statement did not end";
	$sth->{Database}->pg_result;
	# To DBD::Pg 3.21 a statement that was cancelled has done well.
	croak 'statement was cancelled' if $sth->{Database}->state eq '57014';
	return $sth->{NUM_OF_FIELDS} ? @{ $sth->fetchall_arrayref({}) } : ();
}

# Calls a condition until it is true.  Returns false at the end of $seconds.
# An error in it (server restarting) is "not yet".
sub poll
{
	my ($condition, $seconds) = @_;
	my $end = mono() + (defined $seconds ? $seconds : $patience);

	for (;;)
	{
		my $r = eval { $condition->() };
		return $r if $r;
		return 0 if mono() > $end;
		usleep(5_000);
	}
}

sub relay_pid
{
	my ($dbh, $db) = @_;
	$db = $dbh->{pg_db} unless defined $db;
	return value($dbh, q(SELECT pid FROM taskoutbox.relay_status
		WHERE database = $1 AND state = 'running'), $db);
}

# From the server's own view, since launchers are not in ours.
sub launcher_pid
{
	my ($dbh) = @_;
	return value($dbh, q(SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'taskoutbox launcher'));
}

# Waits until the relay of a database runs, and returns its pid.
sub wait_for_relay
{
	my ($node, $db, $seconds) = @_;
	my $dbh;

	$db = 'postgres' unless defined $db;
	my $pid = poll(
		sub {
			$dbh ||= session($node, dbname => $db);
			my $p = eval { relay_pid($dbh, $db) };
			$dbh = undef if !defined $p && !$dbh->ping;
			return $p;
		},
		$seconds);
	$dbh->disconnect if $dbh;
	croak "no relay runs for database $db" unless $pid;
	return $pid;
}

# Waits until the session with that pid sleeps inside a statement, waiting for
# the relay.
sub wait_until_waiting
{
	my ($dbh, @pids) = @_;

	for my $pid (@pids)
	{
		poll(
			sub {
				value($dbh, q(SELECT count(*) FROM pg_stat_activity WHERE pid = $1
					AND state = 'active' AND wait_event_type = 'Extension'), $pid);
			}) or croak "session $pid does not wait";
	}
	return 1;
}

# Receives, as hashes.  Options: queue, max, vt, wait.
sub receive
{
	my ($dbh, %opt) = @_;
	return rows(
		$dbh,
		'SELECT * FROM taskoutbox.receive($1, $2::int, $3::interval, $4::interval)',
		defined $opt{queue} ? $opt{queue} : 'default',
		defined $opt{max} ? $opt{max} : 1,
		$opt{vt},
		defined $opt{wait} ? $opt{wait} : '0');
}

sub ids
{
	return join(' ', map { $_->{id} } @_);
}

# Enqueues a task of a group (undef: none) and returns its id.
sub enqueue
{
	my ($dbh, $group, $payload, $queue) = @_;
	return value(
		$dbh,
		q{SELECT id FROM taskoutbox.enqueue('test', $1::jsonb, group_id => $2, queue => $3)},
		defined $payload ? $payload : '{}',
		$group,
		defined $queue ? $queue : 'default');
}

# Receives several messages of one group in one call, and returns them.  How many
# of a group come together is up to the relay (it adapts to what consumers ask for),
# so this tries with new groups until they do.
sub receive_together
{
	my ($dbh, $n, %opt) = @_;

	for my $try (1 .. 50)
	{
		rows(
			$dbh,
			q(SELECT e.id FROM generate_series(1, $1::int) g,
				LATERAL taskoutbox.enqueue('test', jsonb_build_object('n', g), $2, queue => $3) e),
			$n, "together-$$-$n-$try", defined $opt{queue} ? $opt{queue} : 'default');
		my @m = receive($dbh, wait => '5 s', %opt, max => $n);
		return @m if @m == $n;
		value($dbh, 'SELECT taskoutbox.delete($1::text[])', [ map { $_->{receipt_handle} } @m ]);
		# and the rest of that group
		drain($dbh, %opt);
	}
	croak "never received $n of a group together";
}

# Receives and deletes until the outbox holds nothing for the queue any more;
# returns the messages in the order in which they came.
sub drain
{
	my ($dbh, %opt) = @_;
	my $queue = defined $opt{queue} ? $opt{queue} : 'default';
	my @got;

	poll(
		sub {
			my @m = receive($dbh, max => 10, vt => '1 min', wait => '200 ms', queue => $queue);
			value($dbh, 'SELECT taskoutbox.delete($1::text[])', [ map { $_->{receipt_handle} } @m ]) if @m;
			push @got, @m;
			return !@m && value($dbh, 'SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = $1', $queue) == 0;
		}) or croak "queue $queue does not drain";
	return @got;
}

# Brings one message of a queue to the end of its life, if that allows it one attempt.
sub fail_one
{
	my ($dbh, $queue) = @_;
	my ($m) = receive($dbh, queue => $queue, wait => '5 s');
	value($dbh, q(SELECT taskoutbox.change_visibility($1, '0', 'no')), $m->{receipt_handle});
	receive($dbh, queue => $queue);
	return;
}

# What a copy of the database must have, one of each kind: queues, paused and with
# settings of their own; tasks that wait (20, in order, with deduplication ids), are
# delayed, dead, blocking a group, blocked, redriven.
sub one_of_each
{
	my ($dbh) = @_;
	$dbh->do($_) for (
		q(SELECT taskoutbox.create_queue('once', max_receive_count => 1, on_dead_letter => 'block')),
		q(SELECT taskoutbox.create_queue('lost', max_receive_count => 1)),
		q(SELECT taskoutbox.create_queue('paused', visibility_timeout => '1 hour')),
		q(SELECT taskoutbox.pause_queue('paused')),
		q(SELECT taskoutbox.alter_queue('default', deduplication_window => '1 day')),
		q(SELECT taskoutbox.enqueue('dead', group_id => 'g', queue => 'lost')),
		q(SELECT taskoutbox.enqueue('dead', group_id => 'g', queue => 'once')));
	fail_one($dbh, 'lost');
	fail_one($dbh, 'once');
	$dbh->do(q(SELECT taskoutbox.redrive('once')));
	fail_one($dbh, 'once');
	$dbh->do($_) for (
		q(SELECT taskoutbox.enqueue('blocked', group_id => 'g', queue => 'once')),
		q(SELECT taskoutbox.enqueue('delayed', deliver_at => now() + interval '1 day')),
		q(SELECT taskoutbox.enqueue('waiting', jsonb_build_object('ü', E'\t\\\n"'), 'g', deduplication_id => 'd' || n, headers => '{"k": "v"}') FROM generate_series(1, 20) n),
		q(SELECT taskoutbox.enqueue('of the paused queue', queue => 'paused')));
	return;
}

# All that is the user's, in one text.
sub contents
{
	my ($dbh) = @_;
	return value($dbh, q(SELECT string_agg(t, E'\n' ORDER BY t) FROM (
		SELECT 'task ' || t::text FROM taskoutbox.task_outbox t UNION ALL
		SELECT 'letter ' || d::text FROM taskoutbox.dead_letter d UNION ALL
		SELECT 'id ' || d::text FROM taskoutbox.deduplication d UNION ALL
		SELECT 'queue ' || q::text FROM taskoutbox.queue q UNION ALL
		SELECT 'pin ' || p::text FROM taskoutbox.installation_pin p UNION ALL
		SELECT 'sequence ' || last_value FROM taskoutbox.task_outbox_id_seq UNION ALL
		(SELECT 'installation ' || i.id FROM taskoutbox.installation i ORDER BY created_at LIMIT 1)) a(t)));
}

# A role whose functions in its schema, of the same name, can be controllers.
sub create_controller_role
{
	my ($dbh, $role) = @_;
	$dbh->do("CREATE ROLE $role LOGIN");
	$dbh->do("CREATE SCHEMA $role AUTHORIZATION $role");
	$dbh->do("GRANT USAGE ON SCHEMA taskoutbox TO $role");
	$dbh->do("GRANT USAGE ON TYPE taskoutbox.message TO $role");
	return;
}

# Kills one backend with SIGKILL, which makes the postmaster restart everything,
# and waits until the server and the relay are back.
sub crash
{
	my ($node) = @_;
	my $victim = session($node);
	my $pid = backend_pid($victim);
	my $start = value($victim, 'SELECT pg_postmaster_start_time()');
	my $offset = -s $node->logfile;

	kill 'KILL', $pid or croak "cannot kill $pid: $!";
	$node->wait_for_log(qr/terminated by signal 9/, $offset);
	$node->wait_for_log(qr/database system is ready to accept connections/, $offset);
	return wait_for_relay($node, 'postgres');
}

1;
