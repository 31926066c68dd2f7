# Orders, payments and interest, one for each level of idempotency, while workers,
# relay, programs and the server are killed at random: in the end each is done
# exactly once.  For the embedded queue, and for SQS.

package Killing;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use FakeSqs;
use POSIX ();
use PostgreSQL::Test::Utils;
use SqsTest;
use TaskoutboxTest;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  $dbh
  insist
  get
  create_role
  controller
  kill_everything
);

my ($node, $sqs);

# A session, perhaps of a server that has crashed meanwhile: see insist.
our $dbh;

# The server that the others are about, with a role app for controllers, and the fake SQS if there is one.
sub create_role
{
	($node, $sqs) = @_;
	insist('create a role', sub { create_controller_role($dbh, 'app') });
	return;
}

# Runs something in a session, again and again until the server lets it.
sub insist
{
	my ($what, $code) = @_;
	my $result;
	poll(
		sub {
			$dbh = session($node) if !$dbh || !$dbh->ping;
			$result = [ $code->() ];
			1;
		}) or die "cannot $what: $@";
	return @$result;
}

sub get
{
	my ($sql, @bind) = @_;
	return (insist("ask $sql", sub { value($dbh, $sql, @bind) }))[0];
}

sub controller
{
	my ($type, $queue, $body, $idempotency) = @_;
	$dbh->do('SET SESSION AUTHORIZATION app');
	$dbh->do("CREATE FUNCTION app.\"$type\"(m taskoutbox.message) RETURNS void LANGUAGE plpgsql AS \$f\$ $body \$f\$");
	$dbh->do('RESET SESSION AUTHORIZATION');
	$dbh->do(qq(SELECT taskoutbox.register_controller('$type', 'app."$type"(taskoutbox.message)', '@{[$idempotency || 'atomic']}', '$queue')));
	return;
}

sub create
{
	my ($queue, %settings) = @_;
	%settings = (visibility_timeout => '1 s', ledger_retention => '300 days', %settings);
	if ($sqs)
	{
		sqs_queue($dbh, $sqs, $queue, receives => 1000, attributes => { VisibilityTimeout => 1 }, retry_base => '10 ms', %settings);
		return;
	}
	$dbh->do("SELECT taskoutbox.create_queue('$queue', max_receive_count => 1000, retry_base => '10 ms'"
		  . join('', map { ", $_ => '$settings{$_}'" } sort keys %settings) . ')');
	return;
}

# The outside world: one file per payment, made twice or not.
my $outside;

# A program: receives, claims, has its effect, and deletes. With the embedded queue that is in one transaction with
# the claim; with SQS it comes after it.
sub pay
{
	my ($s) = @_;
	my $url = $sqs ? $sqs->url('payment.fifo') : '';

	for (;;)
	{
		my @messages = $sqs ?
		  map { { payload => $_->{Body}, uid => $_->{MessageAttributes}{task_uid}{StringValue}, receipt_handle => $_->{ReceiptHandle} } }
		  @{ $sqs->call('ReceiveMessage', QueueUrl => $url, WaitTimeSeconds => 1, MaxNumberOfMessages => 5, MessageAttributeNames => ['All'])->{Messages} || [] } :
		  receive($s, queue => 'payment', max => 5, wait => '1 s');
		for my $m (@messages)
		{
			$s->do('BEGIN');
			if (value($s, q(SELECT taskoutbox.claim('payer', $1)), $m->{uid}))
			{
				my ($n) = $m->{payload} =~ /(\d+)/;
				open(my $fh, '>>', "$outside/$n") or die $!;
				print $fh "$m->{uid}\n";
				close $fh;
			}
			value($s, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle}) unless $sqs;
			$s->do('COMMIT');
			$sqs->call('DeleteMessage', QueueUrl => $url, ReceiptHandle => $m->{receipt_handle}) if $sqs;
		}
	}
	return;
}

sub start_payer
{
	my $pid = fork;
	die $! unless defined $pid;
	return $pid if $pid;
	# no END blocks of the test in here
	$SIG{TERM} = 'DEFAULT';
	for (;;)
	{
		eval { pay(session($node, user => 'payer')) };
		usleep(50_000);
	}
	POSIX::_exit(0);
}

# What is owed, and the task that pays it, are one transaction.
sub produce
{
	my ($round) = @_;
	return eval {
		$dbh = session($node) if !$dbh || !$dbh->ping;
		$dbh->do('BEGIN');
		$dbh->do(q(SELECT count(e.id) FROM generate_series(1, 1000) n,
			LATERAL taskoutbox.enqueue('account.interest', jsonb_build_object('account', n, 'amount', (n + $1) % 100 / 100.0), group_id => 'a' || n, queue => 'interest') e),
			undef, $round);
		$dbh->do('UPDATE app.accounts SET owed = owed + round((id + $1) % 100 / 100.0, 2)', undef, $round);
		$dbh->do(q(WITH o AS (INSERT INTO app.orders SELECT coalesce(max(id), 0) + g FROM app.orders, generate_series(1, 50) g GROUP BY g RETURNING id)
			SELECT count(e.id) FROM o, LATERAL taskoutbox.enqueue('order.archive', jsonb_build_object('order', o.id), queue => 'archive') e));
		$dbh->do(q(WITH p AS (INSERT INTO app.payments SELECT nextval('app.payments_id_seq') FROM generate_series(1, 20) RETURNING id)
			SELECT count(e.id) FROM p, LATERAL taskoutbox.enqueue('payment', jsonb_build_object('payment', p.id), queue => 'payment') e));
		$dbh->do('COMMIT');
		1;
	};
}

sub pids
{
	my ($type) = @_;
	return map { $_->{pid} } rows($dbh, 'SELECT pid FROM pg_stat_activity WHERE backend_type = $1', $type);
}

# All that SQS has of the queues.
sub left_in_sqs
{
	my $left = 0;
	for my $state (map { $sqs->queue("$_.fifo") } qw(archive interest payment))
	{
		$left += $state->{visible} + $state->{in_flight};
	}
	return $left;
}

# Options: seconds: how long to kill; rounds: of 1070 tasks each, at most.
sub kill_everything
{
	my (%opt) = @_;

	insist('set up', sub {
		$dbh->do('CREATE TABLE app.orders (id int PRIMARY KEY, archived boolean NOT NULL DEFAULT false)');
		$dbh->do('CREATE TABLE app.payments (id serial PRIMARY KEY, uid text)');
		$dbh->do('CREATE TABLE app.accounts (id int PRIMARY KEY, balance numeric(12,2) NOT NULL DEFAULT 100, owed numeric(12,2) NOT NULL DEFAULT 100)');
		$dbh->do("ALTER TABLE app.$_ OWNER TO app") for qw(orders payments accounts);
		$dbh->do('INSERT INTO app.accounts SELECT generate_series(1, 1000)');
		create($_, consumers => 2) for qw(archive interest);
		create('payment');
		# An archive can be done again: once without a ledger, once with it.
		controller('order.archive', 'archive', q(BEGIN UPDATE app.orders SET archived = true WHERE id = (m.payload ->> 'order')::int; END),
			$sqs ? 'atomic' : 'natural');
		controller('account.interest', 'interest', q(
			BEGIN UPDATE app.accounts SET balance = balance + (m.payload ->> 'amount')::numeric WHERE id = (m.payload ->> 'account')::int; END));
		$dbh->do('CREATE ROLE payer LOGIN');
		$dbh->do('GRANT USAGE ON SCHEMA taskoutbox TO payer');
		$dbh->do('GRANT EXECUTE ON FUNCTION taskoutbox.receive, taskoutbox.delete(text, boolean), taskoutbox.claim TO payer');
	});

	$outside = PostgreSQL::Test::Utils::tempdir();
	$dbh->disconnect;
	$dbh = undef;
	my $payer = start_payer();
	my %kills;
	my $rounds = 0;
	my $end = mono() + $opt{seconds};
	while (mono() < $end)
	{
		# so that there is work all the time
		$rounds += produce($rounds) ? 1 : 0 if $rounds < $opt{rounds} * (1 - ($end - mono()) / $opt{seconds});
		usleep(100_000 + int(rand(900_000)));
		my $what = ('consumer', 'consumer', 'relay', 'postmaster', 'payer', 'stop consumer', 'stop relay')[ int(rand(7)) ];
		my $killed = eval {
			if ($what eq 'payer')
			{
				kill 'KILL', $payer;
				waitpid $payer, 0;
				$payer = start_payer();
			}
			elsif ($what eq 'postmaster')
			{
				$node->kill9;
				# until the last process of the old one is gone
				poll(sub { $node->start(fail_ok => 1) || ($node->stop('fast', fail_ok => 1), 0)[1] })
				  or BAIL_OUT('the server does not start again');
			}
			else
			{
				my ($how, $who) = $what =~ /^(stop )?(.*)/;
				my @pids = pids("taskoutbox $who") or die "none\n";
				my $log = -s $node->logfile;
				kill $how ? 'TERM' : 'KILL', $pids[ int(rand(@pids)) ];
				$node->wait_for_log(qr/database system is ready to accept connections/, $log) unless $how;
			}
			1;
		};
		$kills{$what}++ if $killed;
		$dbh = session($node) if !$dbh || !eval { $dbh->ping };
	}
	note('killed: ' . join(', ', map { "$_ $kills{$_}" } sort keys %kills) . "; $rounds rounds of interest");
	while ($rounds < 1) { $rounds += produce($rounds) ? 1 : 0 }

	ok(poll(sub { get(q(SELECT count(*) FROM taskoutbox.task_outbox)) == 0 && !($sqs && left_in_sqs()) }), 'everything is done in the end')
	  or diag(explain([ rows($dbh, 'SELECT queue, count(*), max(receive_count), max(last_error) FROM taskoutbox.task_outbox GROUP BY 1') ]));
	kill 'KILL', $payer;
	waitpid $payer, 0;

	is(get(q(SELECT count(*) FROM taskoutbox.dead_letter WHERE queue IN ('archive', 'interest', 'payment'))), 0, 'nothing is dead');
	is(get('SELECT count(*) FROM app.accounts WHERE balance <> owed'), 0, 'level 3: every account was paid exactly once, to the cent');
	cmp_ok(get('SELECT sum(owed) - 100 * count(*) FROM app.accounts'), '>', 0, 'and something was owed');
	is(get('SELECT count(*) FROM app.orders WHERE NOT archived'), 0, 'every order is archived');
	my @paid = map { s/.*\///r } glob("$outside/*");
	is(join(' ', sort { $a <=> $b } @paid),
		get(q(SELECT string_agg(id::text, ' ' ORDER BY id) FROM app.payments)), 'level 2: every payment was made, and none that was rolled back');
	is(get(q(SELECT count(*) FROM taskoutbox.ledger WHERE consumer = 'payer')), scalar(@paid), 'and is in the ledger once');
	return;
}

1;
