# Measures 10, 11 and 15: what works tasks off by itself: publishing to SQS, and consumer workers.

package Bench::Workers;

use strict;
use warnings FATAL => 'all';

use Bench;
use FindBin qw($RealBin);
use HTTP::Tiny;
use IPC::Open2;

# A fauxqs of its own for each side's turn, with one queue: it keeps all in memory.
sub start_fauxqs
{
	my $pid = open2(my $from, my $to, 'node', "$RealBin/../test/fauxqs/server.mjs");
	my ($port) = (<$from> // '') =~ /"http":(\d+)/ or die "fauxqs did not start\n";
	my $answer = HTTP::Tiny->new(proxy => undef, http_proxy => undef)->post("http://127.0.0.1:$port/", {
		headers => { 'content-type' => 'application/x-amz-json-1.0', 'x-amz-target' => 'AmazonSQS.CreateQueue' },
		content => '{"QueueName": "bench.fifo", "Attributes": {"FifoQueue": "true"}}' });
	my ($url) = $answer->{content} =~ /"QueueUrl":"([^"]+)"/ or die "fauxqs: $answer->{content}\n";
	return ({ pid => $pid, to => $to, endpoint => "http://127.0.0.1:$port" }, $url);
}

sub stop_fauxqs
{
	my ($fauxqs) = @_;
	close $fauxqs->{to};
	waitpid($fauxqs->{pid}, 0);
	return;
}

sub send_plainly
{
	my ($n) = @_;
	my ($fauxqs, $url) = start_fauxqs();
	open(my $out, '-|', "$RealBin/peers/sender", $fauxqs->{endpoint}, $url, 16, $n) or die "sender: $!";
	chomp(my $rate = <$out>);
	close($out) or die "sender failed\n";
	stop_fauxqs($fauxqs);
	return $rate;
}

# Tasks that wait in a paused queue, and how many are done a second when it is resumed;
# in a group of their own before them, if wanted, some of a type that fails, and stay.
sub drain
{
	my ($queue, $n, $groups, $failing) = @_;
	my $group = $groups ? "'g' || n % $groups" : 'NULL';
	my $waiting = q(SELECT waiting + in_flight FROM taskoutbox.queue_metrics WHERE queue = $1 AND relay_running);

	$failing //= 0;
	value('SELECT taskoutbox.pause_queue($1)', $queue);
	dbh()->do(q(SELECT count(taskoutbox.enqueue('fails', group_id => 'fails', queue => $1)) FROM generate_series(1, $2::int)), undef, $queue, $failing);
	dbh()->do(qq(SELECT count(taskoutbox.enqueue('bench', \$1::jsonb, group_id => $group, queue => \$2))
		FROM generate_series(1, \$3::int) n), undef, payload(), $queue, $n);
	poll(sub { (value($waiting, $queue) // -1) == $n + $failing });
	my $start = mono();
	value('SELECT taskoutbox.resume_queue($1)', $queue);
	poll(sub { value($waiting, $queue) <= $failing }, 600);
	return $n / (mono() - $start);
}

sub publish
{
	my ($n) = @_;
	my ($fauxqs, $url) = start_fauxqs();
	value(q(SELECT taskoutbox.create_queue('sqs', backend => 'sqs', url => $1, endpoint => $2,
		region => 'eu-central-1', require_dlq => false, allow_http => true)), $url, $fauxqs->{endpoint});
	my $rate = drain('sqs', $n, 1000);
	value(q(SELECT taskoutbox.drop_queue('sqs', force => true)));
	relay();
	stop_fauxqs($fauxqs);
	return $rate;
}

measure('10', 'publish', sub {
	my $n = full(50_000, 5_000);
	my $what = "publishing to fauxqs, 16 connections, 1,000 groups, to a bare sender's";
	return skip('10', $what, '>= 0.8', 'no test/fauxqs/node_modules (npm ci)') unless -d "$RealBin/../test/fauxqs/node_modules/fauxqs";
	my $got = alternate('publishing', [ sender => sub { send_plainly($n) } ], [ ours => sub { publish($n) } ]);
	compare('10', $what, $got, 'ours', 'sender', '>= 0.8');
	row('10', '  taskoutbox: messages/s', undef, @{ $got->{ours} });
});

sub graphile
{
	my ($n) = @_;
	dbh()->do(q(SELECT count(graphile_worker.add_job('bench', $1::json)) FROM generate_series(1, $2::int)), undef, payload(), $n);
	run_sql('VACUUM ANALYZE graphile_worker._private_jobs');
	return (peer_lines('graphile-worker', 'work', $n))[-1];
}

measure('11', 'workers', sub {
	my $n = full(50_000, 5_000);
	my $what = 'no-op tasks/s of 4 workers, atomic, to graphile-worker, 24 at a time';
	run_sql(q(CREATE OR REPLACE FUNCTION no_op(taskoutbox.message) RETURNS void LANGUAGE sql RETURN NULL));
	value(q(SELECT taskoutbox.create_queue('bench', consumers => 4)));
	value(q(SELECT taskoutbox.register_controller('bench', 'no_op(taskoutbox.message)', 'atomic', 'bench')));
	poll(sub { value(q(SELECT workers = 4 FROM taskoutbox.controller_status)) });
	my $got = alternate('workers',
		[ 'graphile-worker' => sub { graphile($n) }, 'graphile-worker', 7 ],
		[ ours => sub { drain('bench', $n, 0) } ]);
	compare('11', $what, $got, 'ours', 'graphile-worker', '>= 3');
	row('11', '  graphile-worker: tasks/s', undef, @{ $got->{'graphile-worker'} }) if $got->{'graphile-worker'};
	row('11', '  taskoutbox: tasks/s', undef, @{ $got->{ours} });
});

# How much one group that fails again and again costs the others.
sub beside_failing
{
	my ($n, $failing) = @_;
	value(q(SELECT taskoutbox.create_queue('failing', consumers => 4, max_receive_count => 1000, retry_base => '10 ms', retry_cap => '100 ms')));
	value(q(SELECT taskoutbox.register_controller($1, $2::regprocedure, 'atomic', 'failing')), @$_)
	  for [ 'bench', 'no_op(taskoutbox.message)' ], [ 'fails', 'fails(taskoutbox.message)' ];
	poll(sub { value(q(SELECT bool_and(workers = 4) FROM taskoutbox.controller_status WHERE queue = 'failing')) });
	my $rate = drain('failing', $n, 100, $failing);
	value(q(SELECT taskoutbox.drop_queue('failing', force => true)));
	return $rate;
}

measure('15', 'failing', sub {
	my $n = full(50_000, 5_000);
	run_sql(q(CREATE OR REPLACE FUNCTION no_op(taskoutbox.message) RETURNS void LANGUAGE sql RETURN NULL));
	run_sql(q(CREATE FUNCTION fails(taskoutbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$));
	my $got = alternate('failing', [ 'all well' => sub { beside_failing($n, 0) } ], [ failing => sub { beside_failing($n, 100) } ]);
	compare('15', 'tasks/s of 4 workers, 100 groups, beside one that fails every time, to those groups alone', $got, 'failing', 'all well', '>= 0.8');
	row('15', '  those groups alone: tasks/s', undef, @{ $got->{'all well'} });
});

1;
