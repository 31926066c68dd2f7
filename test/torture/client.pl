#!/usr/bin/perl
#
# One client of the order torture: a producer, a consumer, a waiter or an operator, in its own process
# with its own session.  Started and supervised by Torture.pm; does what it
# does at random, from a seed, until the control file tells it to stop.
#
#   client.pl producer|consumer|waiter|operator NUMBER SEED DIRECTORY HOST PORT LIMIT
#
# LIMIT: producers wait while more messages than that are in the outbox.
#
# What only a client can know goes to a file in DIRECTORY, line by line:
#
#   C client txn time    that transaction was seen committed, at this time of
#                        CLOCK_MONOTONIC (its COMMIT returned, or its rows were
#                        visible to another session)
#   N what count         a figure for the summary
#   V text               something happened that must not
#
# Exit codes: 0 told to stop, 42 died on purpose.

use strict;
use warnings FATAL => 'all';

use DBI;
use POSIX ();
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC usleep);

my ($role, $me, $seed, $dir, $host, $port, $limit) = @ARGV;
die "usage: client.pl role number seed directory host port limit\n" unless defined $limit;
srand($seed);
$SIG{PIPE} = 'IGNORE';

my $name = "$role-$me";
my $groups = 50;
my %figure;
my $dbh;

open my $log, '>>', "$dir/$name.$$.log" or die "cannot write the log of $name: $!";
$log->autoflush(1);

sub mono { return clock_gettime(CLOCK_MONOTONIC) }
sub note_line { print $log join("\t", @_), "\n"; return }
sub chance { return rand() < $_[0] }
sub told { return -e "$dir/stop_$role" }

# Figures are written at the end, also at a deliberate one.
sub leave
{
	my ($code) = @_;
	note_line('N', $_, $figure{$_}) for sort keys %figure;
	close $log;
	POSIX::_exit($code);
}

# What may happen to any statement here and is no fault: the server went away
# (57P01 to 57P03, class 08), a serialization failure or deadlock.
sub lost
{
	my $state = $dbh ? $dbh->state : '08006';
	return 1 if $state =~ /^(57P0[123]|08...|S8006|S1000)$/;
	return $dbh && $dbh->ping <= 0;
}

sub connect_again
{
	my $deadline = mono() + 60;
	eval { $dbh->disconnect } if $dbh;
	for (;;)
	{
		$dbh = eval {
			my $new = DBI->connect(
				"dbi:Pg:dbname=postgres;host=$host;port=$port;application_name=$name",
				'app', '',
				{
					RaiseError => 1,
					PrintError => 0,
					PrintWarn => 0,
					AutoCommit => 1,
					# half of the clients plan every statement anew
					pg_server_prepare => $me % 2
				});
			# A quarter of the sessions commit asynchronously.
			$new->do('SET synchronous_commit = off') if $me % 4 == 3;
			$new;
		};
		last if $dbh;
		if (mono() > $deadline)
		{
			note_line('V', "$name cannot connect: " . DBI->errstr);
			leave(1);
		}
		usleep(50_000);
	}
	return;
}

sub run
{
	my ($sql, @bind) = @_;
	my $sth = $dbh->prepare_cached($sql, undef, 3);
	$sth->execute(@bind);
	return $sth->{NUM_OF_FIELDS} ? @{ $sth->fetchall_arrayref({}) } : ();
}

# Runs a step; an error ends the transaction.  Returns true if it went through,
# and the SQLSTATE of a refusal that the caller said it expects.  Connects again
# when the session was lost.
sub attempt
{
	my ($step, $expected) = @_;
	return 1 if eval { $step->(); 1 };
	my $error = $@;

	if (lost())
	{
		$figure{'sessions lost'}++;
		connect_again();
		return 0;
	}
	my $state = $dbh->state;
	eval { $dbh->do('ROLLBACK') };
	if ($state =~ /^40/)
	{
		$figure{'serialization failures'}++;
		return 0;
	}
	return $state if defined $expected && $state =~ $expected;
	note_line('V', "$name: unexpected error $state: " . ($error =~ s/\s+/ /gr));
	return 0;
}

#
# Producers
#

my $txn = 0;	# number of this client's transaction
my $pos = 0;	# number of this client's enqueue, in call order
my $direct;	# may rows come in without enqueue (not if they are to be prepared)

sub some_group
{
	return undef if chance(.1);
	# a third of the rows in five groups
	return 'g' . (chance(.33) ? 1 + int(rand 5) : 1 + int(rand $groups));
}

# A queue at random: the chances of good, short and block; the rest is dedup.
sub one_queue
{
	my @chances = @_;
	my $x = rand();
	for my $queue (qw(good short block))
	{
		return $queue if ($x -= shift @chances) < 0;
	}
	return 'dedup';
}

# Enqueues a task with an id that others use, too: it is new, or a duplicate.
sub enqueue_once
{
	my ($group) = @_;
	my $id = 'd' . int(rand 10);
	my $started = mono();

	$pos++;
	my ($e) = run(q{SELECT e.id, e.duplicate
		FROM taskoutbox.enqueue('torture', $1::jsonb, $2, queue => 'dedup', deduplication_id => $3) e}, qq({"k": "$me.$pos", "poison": 0}), $group, $id);
	if ($e->{duplicate})
	{
		run(q{INSERT INTO duplicate VALUES ($1, $2)}, $e->{id}, $id);
		return;
	}
	run(q{INSERT INTO committed (id, queue, group_id, client, txn, pos, started, poison, deduplication_id, enqueued_at)
		SELECT $1::bigint, 'dedup', $2, $3::int, $4::int, $5::int, $6::float8, 0, $7, t.enqueued_at
		FROM taskoutbox.task_outbox t WHERE t.id = $1}, $e->{id}, $group, $me, $txn, $pos, $started, $id);
	return;
}

# Enqueues one task in the running transaction, by one of the ways in, and
# records it beside it in the same transaction.  The time is taken before the
# call starts.
sub enqueue
{
	my ($group, $queue) = @_;
	$group = some_group() if @_ < 1;
	$queue = one_queue(.6, .2, .15) unless defined $queue;
	return enqueue_once($group) if $queue eq 'dedup';
	# Poison lives where its group may lose good messages with it.
	my $poison = $queue =~ /^(short|block)$/ && chance(.04) ? 1 : 0;
	my $started = mono();
	my $way = rand($direct ? 1 : .95);
	my @record = ($queue, $group, $me, $txn, ++$pos, $started, $poison);

	if ($way < .5)
	{
		run(q{INSERT INTO committed (id, queue, group_id, client, txn, pos, started, poison)
			SELECT e.id, $1, $2, $3::int, $4::int, $5::int, $6::float8, $7::int
			FROM taskoutbox.enqueue('torture', jsonb_build_object('k', $3::text || '.' || $5::text, 'poison', $7::int),
				group_id => $2, queue => $1) e WHERE NOT e.duplicate}, @record);
	}
	elsif ($way < .9)
	{
		my ($e) = run(q{SELECT * FROM taskoutbox.enqueue('torture', $1::jsonb, $2, queue => $3)},
			qq({"k": "$me.$pos", "poison": $poison}), $group, $queue);
		run(q{INSERT INTO committed (id, queue, group_id, client, txn, pos, started, poison)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)}, $e->{id}, @record);
	}
	elsif ($way < .95)
	{
		# bulk: one statement, many rows, all with the time at which it started
		my $n = 2 + int(rand 40);
		run(q{INSERT INTO committed (id, queue, group_id, client, txn, pos, started, poison)
			SELECT e.id, $1, $2, $3::int, $4::int, $5::int + g, $6::float8, $7::int
			FROM generate_series(0, $8::int - 1) g,
				LATERAL taskoutbox.enqueue('torture', jsonb_build_object('k', $3::text || '.' || ($5::int + g)::text, 'poison', $7::int),
				group_id => $2, queue => $1) e}, @record, $n);
		$pos += $n - 1;
	}
	else
	{
		# a row that did not come through enqueue: INSERT by the owner
		run(q{INSERT INTO committed (id, queue, group_id, client, txn, pos, started, poison)
			SELECT direct_insert($1, $2, jsonb_build_object('k', $3::text || '.' || $5::text, 'poison', $7::int)),
				$1, $2, $3::int, $4::int, $5::int, $6::float8, $7::int}, @record);
	}
	return;
}

sub some
{
	enqueue() for 1 .. 1 + int(rand 4);
	return;
}

sub seen_committed
{
	my ($client, $number) = @_;
	note_line('C', $client, $number, mono());
	return;
}

sub commit
{
	$dbh->do('COMMIT');
	seen_committed($me, $txn);
	$figure{'transactions committed'}++;
	return;
}

# After a commit whose outcome is unknown: what is in the table is committed.
# A prepared transaction is finished first.
sub find_out
{
	my ($gid) = @_;
	my $tries = 0;

	while ($tries++ < 100)
	{
		last if attempt(
			sub {
				if (defined $gid && run(q{SELECT 1 FROM pg_prepared_xacts WHERE gid = $1}, $gid))
				{
					$dbh->do("COMMIT PREPARED '$gid'");
				}
				my @r = run(q{SELECT 1 FROM committed WHERE client = $1 AND txn = $2 LIMIT 1}, $me, $txn);
				seen_committed($me, $txn) if @r;
			});
	}
	return;
}

my $next_long = mono() + rand(12);
my @kinds = (
	[ 30, 'plain' ], [ 8, 'rollback' ], [ 12, 'savepoints' ],
	[ 8, 'prepared' ], [ 4, 'prepared and rolled back' ], [ 5, 'exception' ],
	# Three clients mostly follow what others have just committed.
	[ ($me <= 3 ? 200 : 12), 'follow' ], [ ($me <= 3 ? 0 : 40), 'hot' ]);

sub kind
{
	if (mono() > $next_long)
	{
		$next_long = mono() + 5 + rand(20);
		return 'stay open';
	}
	my $total = 0;
	$total += $_->[0] for @kinds;
	my $x = rand($total);
	for my $k (@kinds)
	{
		return $k->[1] if ($x -= $k->[0]) < 0;
	}
	return 'plain';
}

# Many small transactions in one call: this session does little else than to commit,
# so that a random stop has a chance to hit it there.
sub hot
{
	my $n = 10 + int(rand 20);
	my ($first, $first_pos) = ($txn + 1, $pos + 1);

	$txn += $n;
	$pos += $n;
	if (attempt(sub { run(q{CALL hot($1, $2, $3, $4, $5)}, $me, $first, $first_pos, $n, mono()) }))
	{
		seen_committed($me, $_) for $first .. $txn;
		$figure{'transactions committed'} += $n;
	}
	return;
}

sub produce
{
	my $kind = kind();
	my ($gid, $unknown);
	return hot() if $kind eq 'hot';
	$txn++;
	$direct = $kind !~ /^prepared/;

	my $ok = attempt(
		sub {
			if ($kind eq 'follow')
			{
				# Whoever can see a row enqueues after its commit: in the same group,
				# at once.  The last row of each writer is the one whose commit it may
				# still be about to finish.
				my @new = run(q{SELECT r.client, r.txn, r.queue, r.group_id FROM generate_series(1, 8) c,
					LATERAL (SELECT * FROM committed WHERE client = c ORDER BY txn DESC, pos DESC LIMIT 1) r});
				seen_committed($_->{client}, $_->{txn}) for @new;
				@new = grep { $_->{client} != $me } @new;
				$dbh->do('BEGIN');
				my $started = mono();
				run(q{INSERT INTO committed (id, queue, group_id, client, txn, pos, started, poison)
					SELECT e.id, u.q, u.g, $3::int, $4::int, $5::int + u.n, $6::float8, 0
					FROM unnest($1::text[], $2::text[]) WITH ORDINALITY u(q, g, n),
						LATERAL taskoutbox.enqueue('torture', jsonb_build_object('k', $3::text || '.' || ($5::int + u.n)::text, 'poison', 0),
							u.g, queue => u.q) e},
					[ map { $_->{queue} } @new ], [ map { $_->{group_id} } @new ], $me, $txn, $pos, $started);
				$pos += @new;
				enqueue() if !@new || chance(.1);
				$unknown = 1;
				commit();
				return;
			}
			$dbh->do(chance(.1) ? 'BEGIN ISOLATION LEVEL REPEATABLE READ' : 'BEGIN');
			if ($kind eq 'savepoints')
			{
				some() if chance(.5);
				$dbh->do('SAVEPOINT a');
				some();
				if (chance(.4))
				{
					$dbh->do('SAVEPOINT b');
					some();
					$dbh->do(chance(.5) ? 'ROLLBACK TO b' : 'RELEASE b');
				}
				$dbh->do(chance(.7) ? 'ROLLBACK TO a' : 'RELEASE a');
				some();
			}
			elsif ($kind eq 'exception')
			{
				some();
				run(q{SELECT enqueue_and_fail($1, 'good')}, some_group());
				some() if chance(.5);
			}
			else
			{
				some();
			}
			if ($kind eq 'stay open')
			{
				# The scenario itself: a writer that stays open.
				usleep(5_000_000);
				some();
				$figure{'long transactions'}++;
			}
			if ($kind eq 'rollback')
			{
				$dbh->do('ROLLBACK');
				$figure{'transactions rolled back'}++;
			}
			elsif ($kind =~ /^prepared/)
			{
				$gid = "$name.$txn";
				# If this is interrupted, find_out commits it, if it is there.
				$unknown = 1;
				$dbh->do("PREPARE TRANSACTION '$gid'");
				usleep(int(rand 100_000)) if chance(.3);
				if ($kind eq 'prepared')
				{
					$dbh->do("COMMIT PREPARED '$gid'");
					seen_committed($me, $txn);
					$figure{'transactions prepared and committed'}++;
				}
				else
				{
					$dbh->do("ROLLBACK PREPARED '$gid'");
					$figure{'transactions prepared and rolled back'}++;
				}
			}
			else
			{
				$unknown = 1;
				commit();
			}
		});
	find_out($gid) if !$ok && $unknown;
	return;
}

sub producer
{
	my $round = 0;

	until (told())
	{
		produce();
		usleep(int(rand($me <= 3 ? 1_000 : 4_000)));

		# The queue is to be tortured, not to be filled: wait while too much
		# is undone.
		if (++$round % 20 == 0)
		{
			my $full = 1;
			while ($full && !told())
			{
				attempt(
					sub {
						my ($r) = run(q{SELECT count(*) AS n FROM taskoutbox.task_outbox});
						$full = $r->{n} > $limit;
					});
				usleep(50_000) if $full;
			}
		}
	}
	return;
}

#
# Consumers
#

# Receives and records what was received in one autocommitted statement.  s0 is
# drawn before receive runs (the parameter depends on it), seq after.
my $receive = q{
	WITH b AS MATERIALIZED (SELECT nextval('event') AS s0),
	m AS MATERIALIZED (SELECT b.s0, r.* FROM b,
		LATERAL taskoutbox.receive($1, $2::int + (b.s0 - b.s0)::int, $3::interval, $4::interval)
			WITH ORDINALITY r)
	INSERT INTO received (s0, pos, id, queue, group_id, receive_count, k, poison, handle, consumer)
	SELECT m.s0, m.ordinality, m.id, m.queue, m.group_id, m.receive_count,
		m.payload ->> 'k', (m.payload ->> 'poison')::int, m.receipt_handle, $5 FROM m
	RETURNING s0, id, group_id, poison, handle};

sub give_back
{
	my ($m, $why) = @_;
	my $state = attempt(
		sub { run(q{SELECT taskoutbox.change_visibility($1, '0', error => $2)}, $m->{handle}, $why) },
		qr/^TO012$/);
	$figure{ $state eq 'TO012' ? 'stale handles' : 'given back' }++;
	return;
}

sub record_done
{
	my ($m) = @_;
	run(q{INSERT INTO done (id, s0, consumer) VALUES ($1, $2, $3)}, $m->{id}, $m->{s0}, $name);
	return;
}

sub delete_message
{
	my ($m) = @_;
	run(q{SELECT taskoutbox.delete($1)}, $m->{handle});
	return;
}

sub begin_some_way
{
	my $x = rand();
	$dbh->do($x < .1 ? 'BEGIN ISOLATION LEVEL REPEATABLE READ'
		: $x < .13 ? 'BEGIN ISOLATION LEVEL SERIALIZABLE' : 'BEGIN');
	return;
}

# Business change and delete in one transaction: the right way.
sub finish
{
	my (@m) = @_;
	my $way = rand();
	my $state = attempt(
		sub {
			if (@m == 1 && $way < .3)
			{
				run(q{INSERT INTO done (id, s0, consumer)
					SELECT $2, $3, $4 FROM (SELECT taskoutbox.delete($1) AS ok OFFSET 0) d WHERE d.ok},
					$m[0]{handle}, $m[0]{id}, $m[0]{s0}, $name);
				return;
			}
			begin_some_way();
			if (@m > 1)
			{
				run(q{INSERT INTO done (id, s0, consumer) SELECT i, s, $3 FROM unnest($1::bigint[], $2::bigint[]) u(i, s)},
					[ map { $_->{id} } @m ], [ map { $_->{s0} } @m ], $name);
				run(q{SELECT taskoutbox.delete($1::text[])}, [ map { $_->{handle} } @m ]);
			}
			else
			{
				# sometimes the handler asks for more time first
				run(q{SELECT taskoutbox.change_visibility($1, '3 s')}, $m[0]{handle}) if chance(.1);
				delete_message($m[0]) if $way < .6;
				record_done($m[0]);
				delete_message($m[0]) if $way >= .6;
			}
			$dbh->do('COMMIT');
		},
		qr/^TO012$/);
	$figure{'stale handles'}++ if $state eq 'TO012';
	return;
}

# The ways in which handling one message goes wrong.
my @mishaps = (
	[ 'handler failed', sub { give_back($_[0], 'handler failed') } ],
	[ 'handler failed', sub { give_back($_[0], 'handler failed') } ],
	[ 'handler failed', sub { give_back($_[0], 'handler failed') } ],
	[
		'deleted and rolled back',
		sub {
			my ($m) = @_;
			attempt(
				sub {
					begin_some_way();
					delete_message($m);
					record_done($m);
					$dbh->do('ROLLBACK');
				},
				qr/^TO012$/);
			# then: done properly, given back, or left to its timeout
			my $x = rand();
			$x < .4 ? finish($m) : $x < .7 ? give_back($m, 'rolled back') : ();
		}
	],
	[
		'deleted in a savepoint that was rolled back',
		sub {
			my ($m) = @_;
			attempt(
				sub {
					begin_some_way();
					$dbh->do('SAVEPOINT s');
					record_done($m);
					delete_message($m);
					$dbh->do('ROLLBACK TO s');
					$dbh->do('COMMIT');
				},
				qr/^TO012$/);
			my $x = rand();
			$x < .4 ? finish($m) : $x < .7 ? give_back($m, 'rolled back') : ();
		}
	],
	[ 'left to its timeout', sub { } ],
	[
		'backend terminated in the middle',
		sub {
			my ($m) = @_;
			attempt(
				sub {
					$dbh->do('BEGIN');
					record_done($m);
					delete_message($m);
					run('SELECT pg_terminate_backend(pg_backend_pid())');
				},
				qr/^TO012$/);
		}
	],
	[
		'process died in the middle',
		sub {
			my ($m) = @_;
			attempt(
				sub {
					$dbh->do('BEGIN');
					delete_message($m);
					record_done($m);
				},
				qr/^TO012$/);
			$figure{'process died in the middle'}++;
			leave(42);
		}
	]);

sub consume
{
	# In the end everything has to get through: fewer mishaps, when the producers
	# have stopped.
	my $bad = -e "$dir/stop_producer" ? .01 : .04;
	my $late = chance($bad / 4);
	my $vt = $late ? '200 ms' : sprintf('%d ms', 800 + rand(1200));
	my $wait = chance(.6) ? '0' : sprintf('%d ms', rand(800));
	my $queue = one_queue(.5, .2, .2);
	my $max = chance(.2) ? 1 : 1 + int(rand 30);
	my @m;

	# 55000: no relay yet, after a restart.
	my $state = attempt(sub { @m = run($receive, $queue, $max, $vt, $wait, $name) }, qr/^55000$/);
	if ($state eq '55000' || !@m)
	{
		$figure{ $state eq '55000' ? 'receives without a relay' : 'empty receives' }++;
		usleep(10_000);
		return;
	}
	$figure{received} += @m;

	if ($late)
	{
		# Slow past the timeout: none of these handles may delete any more.
		usleep(600_000);
		for my $m (@m)
		{
			my $r = attempt(
				sub {
					$dbh->do('BEGIN');
					record_done($m);
					delete_message($m);
					note_line('V', "$name: late delete of $m->{id} was accepted");
					$dbh->do('ROLLBACK');
				},
				qr/^TO012$/);
			$figure{'late deletes refused'}++ if $r eq 'TO012';
		}
		return;
	}

	my @good = grep { !$_->{poison} } @m;
	if (@good > 1 && @good == @m && chance(.6))
	{
		finish(@good);
		return;
	}
	while (my $m = shift @m)
	{
		if ($m->{poison})
		{
			give_back($m, 'poison');
		}
		elsif (chance($bad))
		{
			my ($what, $do) = @{ $mishaps[ rand @mishaps ] };
			$do->($m);
			$figure{$what}++;
			# Half of the handlers give back what else they hold of that group,
			# first or last first; the others go on with it.
			if (defined $m->{group_id} && chance(.5))
			{
				my @rest = grep { defined $_->{group_id} && $_->{group_id} eq $m->{group_id} } @m;
				@m = grep { !defined $_->{group_id} || $_->{group_id} ne $m->{group_id} } @m;
				give_back($_, 'group failed') for chance(.5) ? @rest : reverse @rest;
			}
		}
		else
		{
			finish($m);
		}
	}
	return;
}

sub consumer
{
	consume() until told();
	return;
}

# While a receive waits, every commit wakes the relay: that of a waiter, for a
# queue into which nothing comes, does so about half of the time.
sub waiter
{
	until (told())
	{
		attempt(sub { run(q{SELECT * FROM taskoutbox.receive('never', wait => '2 s')}) }, qr/^55000$/);
		usleep(int(rand 4_000_000));
	}
	return;
}

#
# The operator
#

# What is recorded commits or rolls back with what is done.
sub in_transaction
{
	my ($step) = @_;
	$txn++;
	return attempt(
		sub {
			$dbh->do('BEGIN');
			$step->();
			$dbh->do('COMMIT');
		});
}

# The rows of a query, none if the session was lost.
sub look
{
	my @bind = @_;
	my @rows;
	attempt(sub { @rows = run(@bind) });
	return @rows;
}

# A dead letter that blocks its group: redriven the first time, cancelled the second.
sub treat_blocking_letter
{
	my ($letter) = look(q{SELECT id, redriven_from, coalesce(redriven_from, id) AS first_id FROM taskoutbox.dead_letter
		WHERE queue = 'block' ORDER BY random() LIMIT 1}) or return;

	in_transaction(
		sub {
			if (defined $letter->{redriven_from})
			{
				run(q{INSERT INTO cancelled SELECT $1::bigint, at FROM (SELECT clock_timestamp() AS at, taskoutbox.cancel($2) AS ok OFFSET 0) c WHERE ok},
					$letter->{first_id}, $letter->{id});
				$figure{'blocking letters cancelled'}++;
				return;
			}
			run(q{SELECT taskoutbox.redrive('block', $1)}, $letter->{id});
			run(q{INSERT INTO redriven SELECT id, redriven_from FROM taskoutbox.task_outbox WHERE redriven_from = $1}, $letter->{id});
			$figure{'blocking letters redriven'}++;
		});
	return;
}

# A dead letter that its group did not wait for: redriven, it is a new task.
sub redrive_letter
{
	my ($letter) = look(q{SELECT id, coalesce(redriven_from, id) AS first_id, died_at, payload ->> 'k' AS k,
			(payload ->> 'poison')::int AS poison FROM taskoutbox.dead_letter
		WHERE queue = 'short' ORDER BY random() LIMIT 1}) or return;
	my $ok = in_transaction(
		sub {
			my $started = mono();
			run(q{SELECT taskoutbox.redrive('short', $1)}, $letter->{id});
			run(q{INSERT INTO died VALUES ($1, $2)}, $letter->{id}, $letter->{died_at});
			run(q{INSERT INTO committed (id, queue, group_id, client, txn, pos, started, poison, k)
				SELECT id, queue, group_id, $2::int, $3::int, 0, $4::float8, $5::int, $6 FROM taskoutbox.task_outbox
				WHERE redriven_from = $1}, $letter->{first_id}, $me, $txn, $started, $letter->{poison}, $letter->{k});
		});
	if ($ok)
	{
		seen_committed($me, $txn);
		$figure{'letters redriven'}++;
	}
	return;
}

sub cancel_task
{
	in_transaction(
		sub {
			my @r = run(q{INSERT INTO cancelled SELECT t.id, t.at FROM (
					SELECT id, clock_timestamp() AS at FROM taskoutbox.task_outbox TABLESAMPLE bernoulli (1) LIMIT 1) t
				WHERE taskoutbox.cancel(t.id) RETURNING id});
			$figure{'tasks cancelled'} += @r;
		});
	return;
}

sub pause
{
	my $queue = one_queue(.5, .2, .2);
	my ($from, $to);

	attempt(
		sub {
			run('SELECT taskoutbox.pause_queue($1)', $queue);
			($from) = map { $_->{n} } run(q{SELECT nextval('event') AS n});
			usleep(50_000 + int(rand 200_000));
			($to) = map { $_->{n} } run(q{SELECT nextval('event') AS n});
			$figure{'times a queue was paused'}++;
		});
	# It must not stay paused, whatever happened.
	1 until attempt(sub { run('SELECT taskoutbox.resume_queue($1)', $queue) });
	attempt(sub { run('INSERT INTO paused VALUES ($1, $2, $3)', $queue, $from, $to) }) if defined $to;
	return;
}

sub operator
{
	until (told())
	{
		treat_blocking_letter() for 1 .. 5;
		redrive_letter() if chance(.3) && !-e "$dir/stop_producer";
		cancel_task() if chance(.3);
		pause() if chance(.05);
		usleep(int(rand 20_000));
	}
	return;
}

connect_again();
{ producer => \&producer, consumer => \&consumer, waiter => \&waiter, operator => \&operator }->{$role}->();
leave(0);
