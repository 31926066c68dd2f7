# Crashes while controllers run: a task that crashes the server does so
# max_receive_count times, and harms no other; and whatever is killed, work with a
# ledger or in one transaction with its delete is done exactly once.
# CONSUMER_SECONDS: how long to kill (20).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use File::Spec;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;
use Time::HiRes qw(usleep);

my $seconds = $ENV{CONSUMER_SECONDS} || 20;
my $node = new_node('crash', conf => "max_worker_processes = 20\nshared_buffers = 32MB\nwal_level = minimal\nmax_wal_senders = 0\n");
my $dbh = session($node);

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

$dbh->do('CREATE ROLE app LOGIN');
$dbh->do('CREATE SCHEMA app AUTHORIZATION app');
$dbh->do('GRANT USAGE ON SCHEMA taskoutbox TO app');
$dbh->do('GRANT USAGE ON TYPE taskoutbox.message TO app');
my $library = File::Spec->rel2abs("$FindBin::RealBin/../crash/crash");
$dbh->do("CREATE FUNCTION app.crash() RETURNS void LANGUAGE C AS '$library', 'crash'");
$dbh->do('CREATE TABLE app.done (n int, receive_count int)');
$dbh->do('ALTER TABLE app.done OWNER TO app');

sub controller
{
	my ($type, $queue, $body, $idempotency) = @_;
	$dbh->do('SET SESSION AUTHORIZATION app');
	$dbh->do("CREATE FUNCTION app.\"$type\"(m taskoutbox.message) RETURNS void LANGUAGE plpgsql AS \$f\$ $body \$f\$");
	$dbh->do('RESET SESSION AUTHORIZATION');
	$dbh->do(qq(SELECT taskoutbox.register_controller('$type', 'app."$type"(taskoutbox.message)', '@{[$idempotency || 'atomic']}', '$queue')));
	return;
}

#
# A task that crashes the server
#

$dbh->do(q(SELECT taskoutbox.create_queue('bombs', max_receive_count => 3, consumers => 3)));
my $note = q(INSERT INTO app.done VALUES ((m.payload ->> 'n')::int, m.receive_count););
controller('plain', 'bombs', qq(BEGIN IF m.payload ? 'bomb' THEN PERFORM app.crash(); END IF; $note END));
controller('slow', 'bombs', qq(BEGIN PERFORM pg_sleep(1.5); $note END));

my $log = -s $node->logfile;
$dbh->do('BEGIN');
$dbh->do(q(SELECT count(e.id) FROM generate_series(1, 300) n, LATERAL taskoutbox.enqueue('plain', jsonb_build_object('n', n), group_id => 'g' || n % 10, queue => 'bombs') e));
my $bomb = value($dbh, q(SELECT id FROM taskoutbox.enqueue('plain', '{"n": 0, "bomb": true}', group_id => 'g1', queue => 'bombs')));
$dbh->do(q(SELECT count(e.id) FROM generate_series(301, 600) n, LATERAL taskoutbox.enqueue('plain', jsonb_build_object('n', n), group_id => 'g' || n % 10, queue => 'bombs') e));
$dbh->do(q(SELECT count(e.id) FROM generate_series(601, 602) n, LATERAL taskoutbox.enqueue('slow', jsonb_build_object('n', n), queue => 'bombs') e));
$dbh->do('COMMIT');
ok(poll(sub { get(q(SELECT count(*) FROM taskoutbox.task_outbox)) == 0 }), 'all tasks but one complete')
  or diag(explain([ rows($dbh, 'SELECT id, task_type, receive_count, last_error FROM taskoutbox.task_outbox LIMIT 10') ]));
my $text = slurp_file($node->logfile, $log);
is(scalar(() = $text =~ /terminated by signal 6/g), 3, 'it crashed the server max_receive_count times');
is_deeply([ rows($dbh, 'SELECT id, receive_count, stage, last_error FROM taskoutbox.dead_letter') ],
	[ { id => $bomb, receive_count => 3, stage => 'consumer', last_error => 'the server crashed while its controller ran' } ],
	'and is the only dead letter');
is(get('SELECT count(*) FROM app.done'), 602, 'the others were done');
is(get('SELECT count(DISTINCT n) FROM app.done'), 602, 'once');
is(get('SELECT max(receive_count) FROM app.done'), 1, 'no crash counts against what others were at');

# The same at commit: who of those that commit together is it?
$dbh->do('TRUNCATE app.done');
$dbh->do('SET SESSION AUTHORIZATION app');
$dbh->do(q(CREATE FUNCTION app.late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM app.crash(); RETURN NULL; END'));
$dbh->do('CREATE CONSTRAINT TRIGGER late AFTER INSERT ON app.done DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.n = 50) EXECUTE FUNCTION app.late()');
$dbh->do('RESET SESSION AUTHORIZATION');
$log = -s $node->logfile;
$dbh->do(q(SELECT count(e.id) FROM generate_series(1, 100) n, LATERAL taskoutbox.enqueue('plain', jsonb_build_object('n', n), queue => 'bombs') e));
ok(poll(sub { get(q(SELECT count(*) FROM taskoutbox.task_outbox)) == 0 }), 'a crash at commit: all others complete');
is(get('SELECT count(DISTINCT n) FROM app.done'), 99, 'all of them');
is(get('SELECT count(*) FROM app.done'), 99, 'once');
cmp_ok(get('SELECT max(receive_count) FROM app.done'), '<=', 2, 'those that committed with it are counted once, and run alone then');
is(get(q(SELECT string_agg(payload ->> 'n', ' ') FROM taskoutbox.dead_letter WHERE id <> $1), $bomb), '50', 'the culprit is a dead letter');
is(scalar(() = slurp_file($node->logfile, $log) =~ /terminated by signal 6/g), 3, 'after max_receive_count crashes');

# An immediate shutdown is no crash of a controller.
my $slow = get(q(SELECT id FROM taskoutbox.enqueue('slow', '{"n": 700}', queue => 'bombs')));
ok(poll(sub { get('SELECT count(*) FROM taskoutbox.in_flight WHERE id = $1', $slow) }), 'a controller runs');
$node->stop('immediate');
$node->start;
$dbh = undef;
ok(poll(sub { get('SELECT count(*) FROM app.done WHERE n = 700') }), 'it is run again after an immediate shutdown');
is(get('SELECT receive_count FROM app.done WHERE n = 700'), 1, 'without being counted');

#
# Everything is killed
#

insist('set up', sub {
	$dbh->do('CREATE TABLE app.orders (id int PRIMARY KEY, archived boolean NOT NULL DEFAULT false)');
	$dbh->do('CREATE TABLE app.payments (id serial PRIMARY KEY, uid text)');
	$dbh->do('CREATE TABLE app.accounts (id int PRIMARY KEY, balance numeric(12,2) NOT NULL DEFAULT 100, owed numeric(12,2) NOT NULL DEFAULT 100)');
	$dbh->do("ALTER TABLE app.$_ OWNER TO app") for qw(orders payments accounts);
	$dbh->do('INSERT INTO app.accounts SELECT generate_series(1, 1000)');
	$dbh->do(qq(SELECT taskoutbox.create_queue('$_', max_receive_count => 1000, retry_base => '10 ms', visibility_timeout => '1 s', consumers => 2, ledger_retention => '300 days')))
	  for qw(archive interest);
	$dbh->do(q(SELECT taskoutbox.create_queue('payment', max_receive_count => 1000, visibility_timeout => '1 s', ledger_retention => '300 days')));
	controller('order.archive', 'archive', q(BEGIN UPDATE app.orders SET archived = true WHERE id = (m.payload ->> 'order')::int; END), 'natural');
	controller('account.interest', 'interest', q(
		BEGIN UPDATE app.accounts SET balance = balance + (m.payload ->> 'amount')::numeric WHERE id = (m.payload ->> 'account')::int; END));
	$dbh->do('CREATE ROLE payer LOGIN');
	$dbh->do('GRANT USAGE ON SCHEMA taskoutbox TO payer');
	$dbh->do('GRANT EXECUTE ON FUNCTION taskoutbox.receive, taskoutbox.delete(text, boolean), taskoutbox.claim TO payer');
});

# The outside world: one file per payment, made twice or not.
my $outside = PostgreSQL::Test::Utils::tempdir();

# A program: three calls, and the effect in between.
sub pay_for_ever
{
	for (;;)
	{
		eval {
			my $s = session($node, user => 'payer');
			for (;;)
			{
				for my $m (receive($s, queue => 'payment', max => 5, wait => '1 s'))
				{
					$s->do('BEGIN');
					if (value($s, q(SELECT taskoutbox.claim('payer', $1)), $m->{uid}))
					{
						my ($n) = $m->{payload} =~ /(\d+)/;
						open(my $fh, '>>', "$outside/$n") or die $!;
						print $fh "$m->{uid}\n";
						close $fh;
					}
					value($s, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle});
					$s->do('COMMIT');
				}
			}
		};
		usleep(50_000);
	}
}

sub start_payer
{
	my $pid = fork;
	die $! unless defined $pid;
	return $pid if $pid;
	# no END blocks of the test in here
	$SIG{TERM} = 'DEFAULT';
	pay_for_ever();
	POSIX::_exit(0);
}

$dbh->disconnect;
$dbh = undef;
my $payer = start_payer();

# What is owed, and the task that pays it, are one transaction.
my $rounds = 0;
sub produce
{
	my $done = eval {
		$dbh = session($node) if !$dbh || !$dbh->ping;
		$dbh->do('BEGIN');
		$dbh->do(q(SELECT count(e.id) FROM generate_series(1, 1000) n,
			LATERAL taskoutbox.enqueue('account.interest', jsonb_build_object('account', n, 'amount', (n + $1) % 100 / 100.0), group_id => 'a' || n, queue => 'interest') e),
			undef, $rounds);
		$dbh->do('UPDATE app.accounts SET owed = owed + round((id + $1) % 100 / 100.0, 2)', undef, $rounds);
		$dbh->do(q(WITH o AS (INSERT INTO app.orders SELECT coalesce(max(id), 0) + g FROM app.orders, generate_series(1, 50) g GROUP BY g RETURNING id)
			SELECT count(e.id) FROM o, LATERAL taskoutbox.enqueue('order.archive', jsonb_build_object('order', o.id), queue => 'archive') e));
		$dbh->do(q(WITH p AS (INSERT INTO app.payments SELECT nextval('app.payments_id_seq') FROM generate_series(1, 20) RETURNING id)
			SELECT count(e.id) FROM p, LATERAL taskoutbox.enqueue('payment', jsonb_build_object('payment', p.id), queue => 'payment') e));
		$dbh->do('COMMIT');
		1;
	};
	$rounds++ if $done;
	return $done;
}

sub pids
{
	my ($type) = @_;
	return map { $_->{pid} } rows($dbh, 'SELECT pid FROM pg_stat_activity WHERE backend_type = $1', $type);
}

my %kills;
my $end = mono() + $seconds;
while (mono() < $end)
{
	produce() if $rounds < 20;
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
while ($rounds < 1) { produce() }

ok(poll(sub { get(q(SELECT count(*) FROM taskoutbox.task_outbox)) == 0 }), 'everything is done in the end')
  or diag(explain([ rows($dbh, 'SELECT queue, count(*), max(receive_count), max(last_error) FROM taskoutbox.task_outbox GROUP BY 1') ]));
kill 'KILL', $payer;
waitpid $payer, 0;

is(get(q(SELECT count(*) FROM taskoutbox.dead_letter WHERE queue <> 'bombs')), 0, 'nothing is dead');
is(get('SELECT count(*) FROM app.accounts WHERE balance <> owed'), 0, 'level 3: every account was paid exactly once, to the cent');
cmp_ok(get('SELECT sum(owed) - 100 * count(*) FROM app.accounts'), '>', 0, 'and something was owed');
is(get('SELECT count(*) FROM app.orders WHERE NOT archived'), 0, 'level 1: every order is archived');
my @paid = map { s/.*\///r } glob("$outside/*");
is(join(' ', sort { $a <=> $b } @paid),
	get(q(SELECT string_agg(id::text, ' ' ORDER BY id) FROM app.payments)), 'level 2: every payment was made, and none that was rolled back');
is(get(q(SELECT count(*) FROM taskoutbox.ledger WHERE consumer = 'payer')), scalar(@paid), 'and is in the ledger once');
unlike(slurp_file($node->logfile), qr/PANIC|signal 11|TRAP:/, 'no other crash than ours');

done_testing();
