# Measures 6, 7, 8 and 12: receive and delete, beside what one writes on a plain table with SKIP LOCKED.

package Bench::Receive;

use strict;
use warnings FATAL => 'all';

use Bench;

my $is_setup;

sub setup_receive
{
	return if $is_setup++;
	run_sql('CREATE TABLE message (id bigserial PRIMARY KEY, visible_at timestamptz, receive_count int, payload jsonb)');
	run_sql('CREATE INDEX ON message (visible_at)');
	return;
}

# Two transactions each: receive, with the payloads on their way to the client, and delete.
sub ours
{
	my ($batch) = @_;
	return qq(SELECT coalesce(array_agg(receipt_handle), '{}') AS handles, string_agg(payload::text, '') AS payloads
		FROM taskoutbox.receive('default', $batch, wait => '1 s') \\gset
SELECT taskoutbox.delete(:handles::text[]);
);
}

sub skip_locked
{
	my ($batch) = @_;
	return qq(WITH next AS MATERIALIZED (SELECT id FROM message WHERE visible_at <= clock_timestamp()
			ORDER BY id LIMIT $batch FOR UPDATE SKIP LOCKED),
		received AS (UPDATE message m SET visible_at = clock_timestamp() + interval '30 s', receive_count = receive_count + 1
			FROM next WHERE m.id = next.id RETURNING m.id, m.payload)
		SELECT coalesce(array_agg(id), '{}') AS ids, string_agg(payload::text, '') AS payloads FROM received \\gset
DELETE FROM message WHERE id = ANY (:ids::bigint[]);
);
}

# The least that two statements and one commit on disk can be: no locks, no lease, no look for what is next.
sub least
{
	my ($batch) = @_;
	my $some = "FROM message WHERE id > :last AND id <= :last + $batch";
	return qq(SELECT string_agg(payload::text, '') AS payloads $some \\gset
DELETE $some;
\\set last :last + $batch
);
}

# A batch of PgQ is what came between two ticks.
my $pgq = q(SELECT coalesce(pgq.next_batch('bench', 'bench'), 0) AS batch \gset
\if :batch > 0
SELECT count(*) AS n, string_agg(ev_data, '') AS payloads FROM pgq.get_batch_events(:batch) \gset
SELECT pgq.finish_batch(:batch);
\endif
);

sub load_messages
{
	my ($n) = @_;
	run_sql('TRUNCATE message RESTART IDENTITY');
	dbh()->do(q(INSERT INTO message (visible_at, receive_count, payload)
		SELECT clock_timestamp(), 0, $1::jsonb FROM generate_series(1, $2::int)), undef, payload(), $n);
	run_sql('VACUUM ANALYZE message');
	return;
}

sub load_tasks
{
	my ($n) = @_;
	forget_tasks();
	enqueue_many($n, 1000);
	return;
}

sub load_events
{
	my ($n, $batch) = @_;
	eval { run_sql(q(SELECT pgq.unregister_consumer('bench', 'bench'))) };
	value(q(SELECT pgq.drop_queue('bench', true)));
	value(q(SELECT pgq.create_queue('bench')));
	value(q(SELECT pgq.set_queue_config('bench', 'ticker_max_count', $1)), $batch);
	value(q(SELECT pgq.register_consumer('bench', 'bench')));
	run_sql(q(CREATE OR REPLACE PROCEDURE load_events(payload text, batches int, batch int) LANGUAGE plpgsql AS $$
		BEGIN
			FOR i IN 1 .. batches LOOP
				PERFORM pgq.insert_event('bench', 'bench', payload) FROM generate_series(1, batch);
				COMMIT;
				PERFORM pgq.ticker('bench');
				COMMIT;
			END LOOP;
		END $$));
	run_sql('SET synchronous_commit = off');
	dbh()->do('CALL load_events($1, $2::int, $3::int)', undef, payload(), $n / $batch, $batch);
	run_sql('SET synchronous_commit = on');
	return;
}

my %script = (ours => \&ours, skip_locked => \&skip_locked, least => \&least);
my %left = (
	ours => 'SELECT count(*) FROM taskoutbox.task_outbox',
	skip_locked => 'SELECT count(*) FROM message',
	least => 'SELECT count(*) FROM message');

# Messages a second, of so many that were there before.
sub consume
{
	my ($side, $batch, $clients, $n) = @_;
	my $load = $n * 1.2 + 2000;

	$side eq 'ours' ? load_tasks($load) : load_messages($load);
	my $run = pgbench($script{$side}->($batch),
		clients => $clients, transactions => int($n / $batch / $clients));
	my $left = value($left{$side});
	$side eq 'ours' ? forget_tasks() : run_sql('TRUNCATE message');
	return ($load - $left) / $run->{seconds};
}

sub consume_events
{
	my ($batch, $n) = @_;
	load_events($n + 2 * $batch, $batch);
	my $run = pgbench($pgq, transactions => int($n / $batch));
	return $n / $run->{seconds};
}

sub receive_ratio
{
	my ($number, $batch, $clients, $n, $target, @peers) = @_;
	my $title = "receive + delete, $clients consumer" . ($clients > 1 ? 's' : '') . ", batch $batch";
	my $got = alternate($title,
		[ skip_locked => sub { consume('skip_locked', $batch, $clients, $n) } ],
		[ ours => sub { consume('ours', $batch, $clients, $n) } ],
		$clients == 1 ? [ least => sub { consume('least', $batch, 1, $n) } ] : (),
		map { [ $_ => sub { consume_events($batch, $n) }, $_ ] } @peers);
	compare($number, "$title: messages/s to SKIP LOCKED's", $got, 'ours', 'skip_locked', $target);
	compare($number, '  the least that two statements are', $got, 'least', 'skip_locked', undef) if $clients == 1;
	compare($number, '  PgQ, a tick for each batch', $got, 'PgQ', 'skip_locked', undef) if @peers;
	row($number, '  taskoutbox: messages/s', undef, @{ $got->{ours} });
	return;
}

measure('6', 'receive', sub {
	setup_receive();
	receive_ratio('6', 1, 1, full(5_000, 1_500), '>= 2.0', 'PgQ');
	receive_ratio('6', 10, 1, full(50_000, 15_000), '>= 2.2', 'PgQ');
	receive_ratio('6', 100, 1, full(200_000, 60_000), '>= 3.5', 'PgQ');
});

measure('7', 'consumers', sub {
	setup_receive();
	receive_ratio('7', 10, 4, full(100_000, 30_000), '>= 2.5');
});

# While somebody holds a transaction open.  Rates of each second are kept for the plot.
sub hold
{
	my ($side, $held, $n) = @_;
	my %load = (ours => \&load_tasks, skip_locked => \&load_messages, PgQ => sub { load_events(shift, 100) });
	my %consume = (ours => ours(100), skip_locked => skip_locked(100), PgQ => $pgq);
	my %produce = (
		ours => q(SELECT taskoutbox.enqueue('bench', :payload::jsonb, 'new')),
		skip_locked => q(INSERT INTO message (visible_at, receive_count, payload) VALUES (clock_timestamp(), 0, :payload::jsonb)),
		PgQ => q(SELECT pgq.insert_event('bench', 'bench', :payload)));
	my $seconds = full(20, 3);
	my ($holder, $other);

	$load{$side}->($n);
	if ($held)
	{
		$holder = session();
		$holder->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
		$holder->do($produce{$side} =~ s/:payload/'{}'/r);
	}
	if ($side eq 'ours')
	{
		$other = session();
		$other->selectall_arrayref(q(SELECT * FROM taskoutbox.receive(visibility_timeout => '12 hours', wait => '5 s')));
	}
	my $producer = start_pgbench("$produce{$side};\n", rate => 200, seconds => $seconds);
	# Ours stops before it runs dry, SKIP LOCKED would take for ever.
	my $run = pgbench($consume{$side}, progress => 1,
		$side eq 'ours' ? (transactions => int($n / 100 * .95)) : (seconds => $seconds));
	kill 'TERM', $producer->{pid};
	eval { finish_pgbench($producer) };
	$_ && $_->disconnect for $holder, $other;

	# Messages a second; the last second is not a whole one.
	my @rates = map { $_ * 100 } @{ $run->{progress} };
	pop @rates if $side eq 'ours' && @rates > 6;
	save('held', $side, $held ? 'held' : 'free', $_ + 1, $rates[$_]) for 0 .. $#rates;
	my $mean = sub { my $sum = 0; $sum += $_ for @_; $sum / @_ };
	my $k = @rates >= 6 ? 3 : int(@rates / 2) || 1;
	return {
		rate => $run->{n} * 100 / $run->{seconds},
		fall => $mean->(@rates[ -$k .. -1 ]) / $mean->(@rates[ 0 .. $k - 1 ])
	};
}

measure('8', 'held', sub {
	setup_receive();
	my $n = full(1_000_000, 60_000);
	my $got = alternate('held transaction',
		[ free => sub { hold('ours', 0, $n) } ],
		[ held => sub { hold('ours', 1, $n) } ],
		[ 'SKIP LOCKED' => sub { hold('skip_locked', 1, $n) }, 'SKIP LOCKED' ],
		[ 'PgQ' => sub { hold('PgQ', 1, $n) }, 'PgQ' ]);
	row('8', sprintf('transaction held open, %dk preloaded, batch 100: last 3 s to first 3 s', $n / 1000), '>= 0.9', @{ $got->{'held fall'} });
	compare('8', '  rate to that without the holder', $got, 'held rate', 'free rate', '>= 0.9');
	for my $peer ('SKIP LOCKED', 'PgQ')
	{
		row('8', "  $peer: last 3 s to first 3 s", undef, @{ $got->{"$peer fall"} }) if $got->{"$peer fall"};
	}
	row('8', '  taskoutbox, with the holder: messages/s', undef, @{ $got->{'held rate'} });
	forget_tasks();
	run_sql('TRUNCATE message');
});

# A group that waits for its first message, and a hundred others.
sub beside
{
	my ($blocked, $n) = @_;
	my $other;

	forget_tasks();
	if ($blocked)
	{
		enqueue_many($blocked, 1, 'blocked');
		$other = session();
		$other->selectall_arrayref(q(SELECT * FROM taskoutbox.receive(visibility_timeout => '12 hours', wait => '5 s')));
	}
	enqueue_many($n * 1.2, 100);
	my $run = pgbench(ours(10), transactions => int($n / 10));
	my $left = value($left{ours});
	$other->disconnect if $other;
	forget_tasks();
	return ($blocked + $n * 1.2 - $left) / $run->{seconds};
}

measure('12', 'blocked', sub {
	my $blocked = full(1_000_000, 200_000);
	my $n = full(50_000, 10_000);
	my $got = alternate('one group blocked',
		[ free => sub { beside(0, $n) } ],
		[ blocked => sub { beside($blocked, $n) } ]);
	compare('12', sprintf('group of %dk rows blocked: messages/s of 100 others to those without', $blocked / 1000),
		$got, 'blocked', 'free', '>= 0.9');
	row('12', '  messages/s beside it', undef, @{ $got->{blocked} });
});

1;
