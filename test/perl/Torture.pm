# The order torture: many producers and consumers against one server, while its
# processes are stopped, terminated and killed, and then an exact check of what
# was promised.  client.pl is one producer or consumer; this module starts them,
# makes trouble, and judges.
#
# How order is judged (P4 of the design)
#
# For messages A and B of one queue and group, A *precedes* B when
#
#   - they were enqueued by one transaction, A before B, or
#   - somebody knew that A's transaction had committed before the call that
#     enqueued B started: its COMMIT had returned to its client, or its row
#     was visible to another one.  Both times are taken by clients of this
#     host, from CLOCK_MONOTONIC, on the safe side: "committed" is noted after
#     the fact, "started" before.
#
# Then B must not be given out before A is done (its delete committed) or dead,
# except by the same receive, behind A.
#
# Events of consumers are numbered from one sequence: s0 is drawn just before
# receive runs, seq just after it, in the same statement; done.seq inside the
# transaction that deletes.  So the moment at which a message was given out lies
# between s0 and seq, and the commit of its delete after done.seq.  Every verdict
# below follows from these bounds alone: a stopped process can hide a violation,
# never make one up.
#
#   order       B's seq < A's done.seq means B was given out before A was done.
#               For an A that died: B's time stamp is before A's died_at.
#   exclusive   A was in flight from its seq to its done.seq, by the receive that
#               deleted it.  Another receive with s0 and seq between them gave
#               out a message of the same group meanwhile.
#   once        Nothing is received with s0 after the seq of the receive whose
#               handle deleted it: in flight until then, gone afterwards.
#
# An operator cancels tasks, pauses queues and redrives dead letters. In a queue
# that skips dead letters a redriven task is a new one. In one that blocks, it is
# the same: all that was recorded of it is put under its first id before it is
# judged, so that its group must have waited for it. What was cancelled counts as
# dead from the moment before the call.

package Torture;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename qw(dirname);
use File::Spec;
use PostgreSQL::Test::Utils;
use POSIX ();
use TaskoutboxTest;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(torture);

my $client_pl = File::Spec->rel2abs(dirname(__FILE__) . '/../torture/client.pl');

# A stopped process must go on, whatever becomes of this one.
my @stopped;
END { kill 'CONT', @stopped if @stopped }

sub setup
{
	my ($node) = @_;

	$node->safe_psql('postgres', q(
		CREATE ROLE app LOGIN;
		GRANT USAGE ON SCHEMA taskoutbox TO app;
		GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA taskoutbox TO app;
		GRANT SELECT ON taskoutbox.task_outbox, taskoutbox.dead_letter TO app;
		CREATE SEQUENCE event AS bigint CACHE 1;
		CREATE TABLE committed (id bigint PRIMARY KEY, queue text, group_id text, client int,
			txn int, pos int, started float8, poison int, k text,
			deduplication_id text, enqueued_at timestamptz);
		CREATE INDEX ON committed (client, txn);
		CREATE FUNCTION own_k() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN NEW.k := coalesce(NEW.k, NEW.client || '.' || NEW.pos); RETURN NEW; END $$;
		CREATE TRIGGER own_k BEFORE INSERT ON committed FOR EACH ROW EXECUTE FUNCTION own_k();
		CREATE TABLE duplicate (first_id bigint, deduplication_id text);
		-- what the operator did
		CREATE TABLE cancelled (id bigint, at timestamptz);
		CREATE TABLE died (id bigint, died_at timestamptz);
		CREATE TABLE redriven (id bigint, first_id bigint);
		CREATE TABLE paused (queue text, from_seq bigint, to_seq bigint);
		-- no key: a message that is done twice must be seen
		CREATE TABLE done (id bigint, s0 bigint, seq bigint DEFAULT nextval('event'), consumer text);
		CREATE TABLE received (seq bigint DEFAULT nextval('event'), s0 bigint, pos int, id bigint,
			queue text, group_id text, receive_count int, k text, poison int, handle text,
			consumer text, at timestamptz DEFAULT clock_timestamp());
		GRANT ALL ON ALL TABLES IN SCHEMA public TO app;
		GRANT ALL ON SEQUENCE event TO app;

		CREATE FUNCTION direct_insert(queue text, group_id text, payload jsonb) RETURNS bigint
		LANGUAGE sql SECURITY DEFINER AS $$
			INSERT INTO taskoutbox.task_outbox (queue, task_type, group_id, payload)
			VALUES (queue, 'torture', group_id, payload) RETURNING id $$;

		CREATE FUNCTION enqueue_and_fail(g text, q text) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM taskoutbox.enqueue('torture', '{"k": "must not exist"}', group_id => g, queue => q);
			RAISE EXCEPTION 'never mind';
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END $$;

		CREATE PROCEDURE hot(me int, first_txn int, first_pos int, n int, started float8) LANGUAGE plpgsql AS $$
		DECLARE
			g text;
		BEGIN
			FOR i IN 0 .. n - 1 LOOP
				g := 'g' || 1 + floor(50 * random());
				INSERT INTO committed (id, queue, group_id, client, txn, pos, started, poison)
				SELECT e.id, 'good', g, me, first_txn + i, first_pos + i, started, 0
				FROM taskoutbox.enqueue('torture', jsonb_build_object('k', me || '.' || first_pos + i, 'poison', 0), g, queue => 'good') e;
				COMMIT;
			END LOOP;
		END $$;

		SELECT taskoutbox.create_queue('never');
		SELECT taskoutbox.create_queue('good', visibility_timeout => '10 s', max_receive_count => 1000);
		SELECT taskoutbox.create_queue('short', visibility_timeout => '10 s', max_receive_count => 3);
		SELECT taskoutbox.create_queue('block', visibility_timeout => '10 s', max_receive_count => 2, on_dead_letter => 'block');
		SELECT taskoutbox.create_queue('dedup', visibility_timeout => '10 s', max_receive_count => 1000, deduplication_window => '500 ms');
	));
	return;
}

# Client processes.  They are programs of their own, not mere forks, so that no
# session and no exit handler of the test gets into them.
sub start_client
{
	my ($t, $role, $number) = @_;
	my $seed = $t->{seed} * 1000 + ($t->{clients_started}++);

	my $pid = fork();
	die "fork failed: $!" unless defined $pid;
	if ($pid == 0)
	{
		exec($^X, $client_pl, $role, $number, $seed, $t->{dir}, $t->{node}->host, $t->{node}->port,
			2000 + ($t->{backlog} || 0))
		  or POSIX::_exit(1);
	}
	$t->{client}{$pid} = [ $role, $number ];
	return;
}

# Looks after clients that ended: one that died on purpose has a successor.
sub reap
{
	my ($t) = @_;

	while ((my $pid = POSIX::waitpid(-1, POSIX::WNOHANG)) > 0)
	{
		my $c = delete $t->{client}{$pid} or next;
		my $code = $?;
		if ($code == 42 << 8)
		{
			start_client($t, @$c) unless -e "$t->{dir}/stop_$c->[0]";
		}
		elsif ($code != 0)
		{
			push @{ $t->{violations} }, "client @$c ended with status $code";
		}
	}
	return;
}

sub running
{
	my ($t, $role) = @_;
	return grep { $_->[0] eq $role } values %{ $t->{client} };
}

sub stop_role
{
	my ($t, $role, $seconds) = @_;
	open my $fh, '>', "$t->{dir}/stop_$role" or die $!;
	close $fh;
	return poll(sub { reap($t); !running($t, $role) }, $seconds);
}

# The troublemaker's own session; made again after a crash of the server.
sub admin
{
	my ($t) = @_;
	if (!$t->{dbh} || !eval { $t->{dbh}->ping > 0 })
	{
		$t->{dbh} = undef;
		poll(sub { $t->{dbh} = session($t->{node}, app => 'torture') }, 60)
		  or die "cannot connect to the server";
	}
	return $t->{dbh};
}

# The state of a process (R: it runs), if it is a child of this server's postmaster.
sub is_backend
{
	my ($t, $pid) = @_;
	open my $fh, '<', "/proc/$pid/stat" or return 0;
	my $line = <$fh>;
	return 0 unless defined $line && $line =~ /^\d+ \(.*\) (\S) (\d+) /;
	return $2 == $t->{node}{_pid} ? $1 : 0;
}

sub victims
{
	my ($t, $which) = @_;
	return map { $_->{pid} } rows(admin($t), $which);
}

sub one_of
{
	return @_ ? $_[ rand @_ ] : undef;
}

sub stop_and_continue
{
	my ($t, $usec, @pids) = @_;
	@stopped = grep { defined $_ && is_backend($t, $_) } @pids;
	kill 'STOP', @stopped if @stopped;
	# the stop itself; nothing in between may need the server
	usleep($usec);
	kill 'CONT', @stopped if @stopped;
	$t->{figure}{'times a process was stopped'} += @stopped;
	@stopped = ();
	return;
}

my $clients_sql = q(SELECT pid FROM pg_stat_activity WHERE application_name ~ '^(producer|consumer)-');
my $writers_sql = q(SELECT pid FROM pg_stat_activity WHERE application_name ~ '^producer-[4-8]');
my $consumers_sql = q(SELECT pid FROM pg_stat_activity WHERE application_name ~ '^consumer-');
my $relay_sql = q(SELECT pid FROM taskoutbox.relay_status WHERE database = 'postgres' AND pid IS NOT NULL);

# Makes trouble until the time is over.
sub trouble
{
	my ($t, $seconds) = @_;
	my $now = mono();
	my $end = $now + $seconds;
	my $next_relay = $now + 2 + rand(2);
	my $next_consumer = $now + 1 + rand(3);
	my $next_kill = $now + 3;
	my ($next_list, @writers, @relay, @all) = (0);

	while (($now = mono()) < $end)
	{
		eval {
			reap($t);
			if ($now >= $next_list)
			{
				my $bytes = value(admin($t), q(SELECT memory_bytes FROM taskoutbox.relay_status WHERE database = 'postgres'));
				$t->{figure}{'most bytes of memory'} = $bytes
				  if defined $bytes && $bytes > ($t->{figure}{'most bytes of memory'} || 0);
				@writers = victims($t, $writers_sql);
				@relay = victims($t, $relay_sql);
				@all = (victims($t, $clients_sql), @relay);
				$next_list = $now + .5;
			}
			if ($now >= $next_relay)
			{
				if (value(admin($t), "SELECT count(pg_terminate_backend(pid)) FROM ($relay_sql) r"))
				{
					$t->{figure}{'times the relay was terminated'}++;
				}
				if (rand() < .2)
				{
					value(admin($t), q(SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
						WHERE backend_type = 'taskoutbox launcher'));
					$t->{figure}{'times the launcher was terminated'}++;
				}
				$next_relay = $now + 2 + rand(3);
			}
			if ($now >= $next_consumer)
			{
				my $pid = one_of(victims($t, $consumers_sql));
				value(admin($t), 'SELECT pg_terminate_backend($1)', $pid) if $pid;
				$next_consumer = $now + 1 + rand(3);
			}
			if ($t->{kill} && $now >= $next_kill && $end - $now > 2)
			{
				my $pid = one_of(victims($t, $clients_sql));
				if ($pid && is_backend($t, $pid))
				{
					kill 'KILL', $pid;
					$t->{figure}{'crashes of the server'}++;
				}
				$next_kill = $now + 4 + rand(2);
				$next_list = 0;
			}
			# Mostly short stops, of the writers that run on a CPU just now: the best
			# chance to catch one between becoming visible to others and telling
			# the relay; or of the relay, in the middle of its round.  Those that
			# follow others' commits (see client.pl) go on meanwhile.  Sometimes
			# a long stop, of any process.
			my $x = rand();
			if ($x < .95)
			{
				my @targets = $x < .6 ? @writers : @relay;
				my @running;
				for (1 .. 20)
				{
					last if @running = grep { is_backend($t, $_) eq 'R' } @targets;
				}
				stop_and_continue($t, 8_000 + rand(20_000), @running ? @running : one_of(@targets));
			}
			else
			{
				stop_and_continue($t, 100_000 + rand(300_000), one_of(@all));
			}
			usleep(2_000 + rand(5_000));
			1;
		} or do
		{
			# The server restarts after a kill; anything else is an error of the test.
			my $error = $@;
			die $error unless $t->{kill} && poll(sub { admin($t) }, 60);
			$next_list = 0;
		};
	}
	return;
}

# What the clients wrote down.
sub read_logs
{
	my ($t) = @_;
	my %committed_at = %{ $t->{committed_at} };
	my %figure;

	for my $file (glob("$t->{dir}/*.log"))
	{
		open my $fh, '<', $file or die $!;
		while (my $line = <$fh>)
		{
			chomp $line;
			my ($kind, @f) = split /\t/, $line;
			if ($kind eq 'C')
			{
				my $key = "$f[0].$f[1]";
				$committed_at{$key} = $f[2]
				  if !exists $committed_at{$key} || $f[2] < $committed_at{$key};
			}
			elsif ($kind eq 'N')
			{
				$figure{ $f[0] } += $f[1];
			}
			else
			{
				push @{ $t->{violations} }, @f;
			}
		}
		close $fh;
	}
	return (\%committed_at, \%figure);
}

# A tree over an array of numbers that finds all positions below $k whose value
# is more than $x, in the time of what it finds.
sub tree
{
	my (@value) = @_;
	my $size = 1;
	$size *= 2 while $size < @value;
	my @max = ((-9**9**9) x $size, @value, (-9**9**9) x ($size - @value));
	for (my $i = $size - 1; $i > 0; $i--)
	{
		$max[$i] = $max[ 2 * $i ] > $max[ 2 * $i + 1 ] ? $max[ 2 * $i ] : $max[ 2 * $i + 1 ];
	}
	return [ $size, \@max ];
}

sub above
{
	my ($tree, $k, $x) = @_;
	my ($size, $max) = @$tree;
	my @found;
	my @todo = ([ 1, 0, $size ]);

	while (my $n = pop @todo)
	{
		my ($node, $from, $width) = @$n;
		next if $from >= $k || $max->[$node] <= $x;
		if ($width == 1)
		{
			push @found, $from;
			next;
		}
		push @todo, [ 2 * $node, $from, $width / 2 ], [ 2 * $node + 1, $from + $width / 2, $width / 2 ];
	}
	return @found;
}

# Number of elements of a sorted array that are less than $x.
sub below
{
	my ($sorted, $x) = @_;
	my ($lo, $hi) = (0, scalar @$sorted);
	while ($lo < $hi)
	{
		my $mid = int(($lo + $hi) / 2);
		if ($sorted->[$mid] < $x) { $lo = $mid + 1 }
		else { $hi = $mid }
	}
	return $lo;
}

# Orders of one group.  $messages: of this group; each {id, started, committed
# (infinite if nobody knows), txn, pos, done (seq, minus infinity if it died,
# infinite if neither), died (epoch, minus infinity if it did not), s1 (seq of
# the receive that deleted it)}.  $events: receives of its messages; each {id,
# s0, seq, pos, at}.  Returns what is wrong.  Exported for its own test.
sub check_group
{
	my ($messages, $events) = @_;
	my (@wrong, %m, %by_txn, %events_of, %pos_in);

	for my $m (@$messages)
	{
		$m{ $m->{id} } = $m;
		push @{ $by_txn{ $m->{txn} } }, $m;
	}
	for my $e (@$events)
	{
		push @{ $events_of{ $e->{id} } }, $e;
		$pos_in{ $e->{s0} }{ $e->{id} } = $e->{pos};
	}

	my @by_commit = sort { $a->{committed} <=> $b->{committed} } @$messages;
	my @times = map { $_->{committed} } @by_commit;
	my $done = tree(map { $_->{done} } @by_commit);
	my $died = tree(map { $_->{died} } @by_commit);

	for my $later (@$messages)
	{
		my $k = below(\@times, $later->{started});
		my @same = grep { $_->{pos} < $later->{pos} } @{ $by_txn{ $later->{txn} } };

		for my $e (@{ $events_of{ $later->{id} } || [] })
		{
			my @late = map { $by_commit[$_] }
			  above($done, $k, $e->{seq}), above($died, $k, $e->{at});
			push @late, grep { $_->{done} > $e->{seq} || $_->{died} > $e->{at} } @same;
			for my $earlier (@late)
			{
				next if $earlier->{id} == $later->{id};
				my $p = $pos_in{ $e->{s0} }{ $earlier->{id} };
				next if defined $p && $p < $e->{pos};
				push @wrong, "order: $later->{id} (client.txn $later->{txn}) was received at event $e->{seq}, before $earlier->{id} (client.txn $earlier->{txn}), which precedes it";
			}
		}
	}

	my @events = sort { $a->{s0} <=> $b->{s0} } @$events;
	my @s0 = map { $_->{s0} } @events;
	for my $m (grep { defined $_->{s1} } @$messages)
	{
		for (my $i = below(\@s0, $m->{s1}); $i < @events && $s0[$i] < $m->{done}; $i++)
		{
			my $e = $events[$i];
			next if $e->{seq} > $m->{done} || $e->{id} == $m->{id};
			# A message before A of the same receive is not a later one.
			my $siblings = $pos_in{ $m->{by} };
			next if defined $siblings->{ $e->{id} } && $siblings->{ $e->{id} } < $siblings->{ $m->{id} };
			push @wrong, "exclusive: $e->{id} was received at event $e->{seq}, while $m->{id} of its group was in flight";
		}
	}
	return @wrong;
}

sub check
{
	my ($t) = @_;
	my $dbh = admin($t);
	my ($committed_at, $figure) = read_logs($t);
	my $inf = 9**9**9;
	my @wrong;
	my $f = $t->{figure};

	$f->{$_} = $figure->{$_} for keys %$figure;

	# A redriven task of a queue that blocks is still the first one.
	$dbh->do($_) for (
		'ALTER TABLE received ADD own_id bigint',
		'UPDATE received SET own_id = id',
		'UPDATE received r SET id = a.first_id FROM redriven a WHERE a.id = r.id',
		'UPDATE done d SET id = a.first_id FROM redriven a WHERE a.id = d.id',
		'UPDATE cancelled c SET id = a.first_id FROM redriven a WHERE a.id = c.id',
		q(CREATE VIEW dead AS
			SELECT CASE queue WHEN 'block' THEN coalesce(redriven_from, id) ELSE id END AS id, died_at FROM taskoutbox.dead_letter
			UNION ALL SELECT id, died_at FROM died
			UNION ALL SELECT id, at FROM cancelled),
		'ANALYZE');

	# Accounting, by the database itself.
	my %must_be_empty = (
		'committed and neither done nor dead' =>
		  q(SELECT id FROM committed EXCEPT (SELECT id FROM done UNION SELECT id FROM dead)),
		'done, but never committed' => q(SELECT id FROM done EXCEPT SELECT id FROM committed),
		'dead, but never committed' =>
		  q(SELECT id FROM dead EXCEPT SELECT id FROM committed),
		'done and dead' => q(SELECT id FROM done INTERSECT SELECT id FROM dead),
		'dead twice' => q(SELECT id FROM dead GROUP BY id HAVING count(*) > 1),
		'done twice' => q(SELECT id FROM done GROUP BY id HAVING count(*) > 1),
		'received, but never committed' => q(SELECT id FROM received EXCEPT SELECT id FROM committed),
		'received with the content of another' =>
		  q(SELECT r.id FROM received r JOIN committed c USING (id) WHERE r.queue <> c.queue
			OR r.group_id IS DISTINCT FROM c.group_id OR r.k <> c.k),
		'done, by a receive that is not recorded' =>
		  q(SELECT id FROM done EXCEPT SELECT d.id FROM done d JOIN received r USING (id, s0)),
		'poison, and not dead' =>
		  q(SELECT id FROM committed WHERE poison = 1 EXCEPT SELECT id FROM dead),
		'dead in a queue that allows 1000 receives' =>
		  q(SELECT id FROM taskoutbox.dead_letter WHERE queue IN ('good', 'dedup')),
		'left in the outbox' => q(SELECT id FROM taskoutbox.task_outbox),
		'received while their queue was paused' =>
		  q(SELECT r.id FROM received r JOIN paused p USING (queue) WHERE r.s0 > p.from_seq AND r.seq < p.to_seq),
		'named as the first of a duplicate, but never committed' =>
		  q(SELECT first_id AS id FROM duplicate EXCEPT SELECT id FROM committed),
		'named as the first of a duplicate, with another deduplication id' =>
		  q(SELECT c.id FROM duplicate d JOIN committed c ON c.id = d.first_id WHERE c.deduplication_id <> d.deduplication_id),
		'new, though the window of another one was not over' =>
		  q(SELECT id FROM (SELECT id, enqueued_at - lag(enqueued_at) OVER (PARTITION BY deduplication_id ORDER BY enqueued_at) AS gap
			FROM committed WHERE deduplication_id IS NOT NULL) c WHERE gap < '500 ms'),
		# once (see above)
		'received again after the receive that deleted it' =>
		  q(SELECT r.id FROM done d JOIN received d1 USING (id, s0) JOIN received r USING (id) WHERE r.s0 > d1.seq));
	# A receive that nobody counted would never end: without a crash, no two
	# receives of one message have the same count.
	$must_be_empty{'received twice with one receive_count'} =
	  q(SELECT own_id AS id FROM received GROUP BY own_id, receive_count HAVING count(*) > 1)
	  unless $t->{kill};

	for my $what (sort keys %must_be_empty)
	{
		my @ids = map { $_->{id} } rows($dbh, $must_be_empty{$what});
		next unless @ids;
		my $n = @ids;
		splice(@ids, 10) if @ids > 10;
		push @wrong, "$n messages are $what: @ids";
	}

	# Order.
	my (%group, %events);
	for my $m (rows($dbh, q(
		SELECT c.id, c.queue || ' ' || c.group_id AS grp, c.client || '.' || c.txn AS txn, c.pos, c.started,
			d.seq AS done, r.seq AS s1, d.s0 AS by, extract(epoch FROM l.died_at) AS died
		FROM committed c LEFT JOIN done d USING (id) LEFT JOIN received r ON r.id = d.id AND r.s0 = d.s0
			LEFT JOIN dead l ON l.id = c.id
		WHERE c.group_id IS NOT NULL)))
	{
		$m->{committed} = exists $committed_at->{ $m->{txn} } ? $committed_at->{ $m->{txn} } : $inf;
		$f->{'messages whose commit nobody saw'}++ if $m->{committed} == $inf;
		$m->{done} = defined $m->{died} ? -$inf : $inf unless defined $m->{done};
		$m->{died} = -$inf unless defined $m->{died};
		push @{ $group{ $m->{grp} } }, $m;
	}
	for my $e (rows($dbh, q(SELECT id, queue || ' ' || group_id AS grp, s0, seq, pos, extract(epoch FROM at) AS at
		FROM received WHERE group_id IS NOT NULL)))
	{
		push @{ $events{ $e->{grp} } }, $e;
	}
	for my $g (sort keys %group)
	{
		push @wrong, map { "group $g: $_" } check_group($group{$g}, $events{$g} || []);
	}

	$f->{'messages committed'} = value($dbh, 'SELECT count(*) FROM committed');
	$f->{'messages done'} = value($dbh, 'SELECT count(*) FROM done');
	$f->{'messages dead'} = value($dbh, 'SELECT count(*) FROM taskoutbox.dead_letter');
	$f->{'duplicates'} = value($dbh, 'SELECT count(*) FROM duplicate');
	$f->{'messages received again'} =
	  value($dbh, 'SELECT count(*) FROM received WHERE receive_count > 1');
	push @{ $t->{violations} }, @wrong;
	return;
}

# Between a commit and the moment when the relay is told of it there is a gap,
# in which the relay can see the row: make it wide (slow_commit.c).
sub slow_commits
{
	my $library = File::Spec->rel2abs(dirname(__FILE__) . '/../slow_commit/slow_commit');

	return "shared_preload_libraries = 'taskoutbox, $library'\nslow_commit.max_us = 2000\n";
}

# One run.  Options: name, seed, seconds, conf (lines for postgresql.conf), kill
# (kill -9 of a backend now and then), backlog (messages that are there before
# the first consumer), memory (bytes that the relay may say it holds).
sub torture
{
	my (%opt) = @_;
	my $t = {
		%opt,
		dir => PostgreSQL::Test::Utils::tempdir(),
		node => new_node($opt{name}, conf => slow_commits() . ($opt{conf} // '')),
		clients_started => 0,
		client => {},
		committed_at => {},
		figure => {},
		violations => []
	};
	srand($opt{seed});
	setup($t->{node});

	# Somebody else's open transaction, with a snapshot and an xid, to the end.
	my $foreign;
	my $hold = sub {
		$foreign = session($t->{node}, app => 'foreign');
		$foreign->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
		$foreign->do('SELECT pg_current_xact_id()');
	};
	$hold->();

	if ($opt{backlog})
	{
		# A quarter of it in the groups that the clients use as well.
		admin($t)->do(q(
			INSERT INTO committed (id, queue, group_id, client, txn, pos, started, poison)
			SELECT e.id, 'good', s.g, 0, 0, s.n, 0, 0
			FROM (SELECT n, CASE n % 4 WHEN 0 THEN 'g' || 1 + n % 50 ELSE 'backlog-' || n % 3000 END AS g
					FROM generate_series(1, $1::int) n) s,
				LATERAL taskoutbox.enqueue('torture', jsonb_build_object('k', '0.' || s.n, 'poison', 0),
					group_id => s.g, queue => 'good') e), undef, $opt{backlog});
		$t->{committed_at}{'0.0'} = mono();
	}

	start_client($t, 'producer', $_) for 1 .. 8;
	start_client($t, 'consumer', $_) for 1 .. 5;
	start_client($t, 'waiter', 1);
	start_client($t, 'operator', 100);
	trouble($t, $opt{seconds});

	my $stopped_all = stop_role($t, 'producer', 60);
	ok($stopped_all, 'producers ended');
	eval { $foreign->ping > 0 } or $hold->();

	# Everything must get through while the foreign transaction is still open.
	my $left = q(SELECT count(*) FROM taskoutbox.task_outbox);
	my $started = mono();
	my $drained = poll(sub { reap($t); value(admin($t), $left) == 0 }, 120);
	$t->{figure}{'seconds to drain'} = sprintf('%.1f', mono() - $started);
	ok($drained, 'the outbox drained');
	if (!$drained)
	{
		diag("left: $_->{n} of queue $_->{queue}, group " . ($_->{group_id} // 'none') . ", first $_->{first}, prepared $_->{prepared}")
		  for rows(admin($t), q(SELECT queue, group_id, count(*) AS n, min(id) AS first,
			(SELECT count(*) FROM pg_prepared_xacts) AS prepared
			FROM taskoutbox.task_outbox GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 10));
		diag(join ' ', map { "$_=" . ($t->{status}{$_} // '') } sort keys %{ $t->{status} })
		  if ($t->{status}) = rows(admin($t), 'SELECT * FROM taskoutbox.relay_status');
	}
	ok(stop_role($t, 'operator', 60) && stop_role($t, 'consumer', 60) && stop_role($t, 'waiter', 60), 'operator and consumers ended');

	# What the relay believes agrees with what is there: nothing.
	my $figures = q(SELECT coalesce(sum(waiting + delayed), -1) || ' ' || coalesce(sum(in_flight), -1)
		FROM taskoutbox.queue_metrics);
	ok(poll(sub { value(admin($t), $figures) eq '0 0' }, 20), 'figures say that nothing waits and nothing is in flight')
	  or diag('waiting and in flight: ' . value(admin($t), $figures));

	cmp_ok($t->{figure}{'most bytes of memory'}, '<=', $opt{memory}, 'memory of the relay is bounded')
	  if defined $opt{memory};

	check($t);
	eval { $foreign->do('COMMIT') };

	my $n = @{ $t->{violations} };
	is($n, 0, 'violations');
	my @show = @{ $t->{violations} };
	splice(@show, 30) if @show > 30;
	diag("violation: $_") for @show;
	diag("$opt{name}: "
		  . join(', ', map { "$_ $t->{figure}{$_}" } sort keys %{ $t->{figure} })
		  . ", violations $n");

	$t->{dbh}->disconnect;
	$t->{node}->stop('fast');
	return $t;
}

1;
