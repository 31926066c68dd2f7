# Measures 10 and 11: what works tasks off by itself: publishing to SQS, and consumer workers.

package Bench::Workers;

use strict;
use warnings FATAL => 'all';

use Bench;

# The place for it: a queue with backend => 'sqs' and fauxqs as in the tests, as a ratio to what 16
# connections of a plain sender reach against the same fauxqs.
measure('10', 'publish', sub {
	skip('10', 'publishing to fauxqs, 16 connections, 1,000 groups', '>= 0.8', 'there is no backend sqs');
});

sub graphile
{
	my ($n) = @_;
	dbh()->do(q(SELECT count(graphile_worker.add_job('bench', $1::json)) FROM generate_series(1, $2::int)), undef, payload(), $n);
	run_sql('VACUUM ANALYZE graphile_worker._private_jobs');
	return (peer_lines('graphile-worker', 'work', $n))[-1];
}

# From the resumption of the queue until all is done.
sub ours
{
	my ($n) = @_;
	forget_tasks();
	value(q(SELECT taskoutbox.pause_queue('bench')));
	dbh()->do(q(SELECT count(taskoutbox.enqueue('bench', $1::jsonb, queue => 'bench')) FROM generate_series(1, $2::int)), undef, payload(), $n);
	my $waiting = q(SELECT waiting + in_flight FROM taskoutbox.queue_metrics WHERE queue = 'bench' AND relay_running);
	poll(sub { (value($waiting) // -1) == $n });
	my $start = mono();
	value(q(SELECT taskoutbox.resume_queue('bench')));
	poll(sub { value($waiting) == 0 }, 600);
	return $n / (mono() - $start);
}

measure('11', 'workers', sub {
	my $n = full(50_000, 5_000);
	my $what = 'no-op tasks/s of 4 workers, atomic, to graphile-worker, 24 at a time';
	my @sides = ([ 'graphile-worker' => sub { graphile($n) }, 'graphile-worker', 7 ]);

	if (!value(q(SELECT to_regproc('taskoutbox.register_controller') IS NOT NULL)))
	{
		skip('11', $what, '>= 3', 'there are no consumer workers');
	}
	else
	{
		run_sql(q(CREATE FUNCTION no_op(taskoutbox.message) RETURNS void LANGUAGE sql RETURN NULL));
		value(q(SELECT taskoutbox.create_queue('bench')));
		value(q(SELECT taskoutbox.register_controller('bench', 'no_op(taskoutbox.message)', 'atomic', 'bench')));
		push @sides, [ ours => sub { ours($n) } ];
	}
	my $got = alternate('workers', @sides);
	compare('11', $what, $got, 'ours', 'graphile-worker', '>= 3');
	row('11', '  graphile-worker: tasks/s', undef, @{ $got->{'graphile-worker'} }) if $got->{'graphile-worker'};
	row('11', '  taskoutbox: tasks/s', undef, @{ $got->{ours} }) if $got->{ours};
});

1;
