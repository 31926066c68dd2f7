# Publishing to SQS: everything arrives once, in order and unchanged; what fails is
# retried, given up or waited for, according to whose fault it is.  Cases C06 to C09,
# C11, C12, C21, C24, C69 to C72, C76, C77, C79, C80, C109, C115.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use Encode;
use FakeSqs;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SqsTest;
use TaskoutboxTest;
use Test::More;

plan skip_all => FakeSqs::missing() if FakeSqs::missing();

my ($sqs, $node) = new_sqs_node('sqs', conf => "taskoutbox.request_timeout = '1s'\nlog_error_verbosity = terse\n");
my $dbh = session($node);

# Enqueues with named arguments of enqueue; returns the id.
sub put
{
	my ($queue, %args) = @_;
	my @names = sort keys %args;
	my $n = 1;
	return value($dbh,
		'SELECT id FROM taskoutbox.enqueue(\'test\', queue => $1' . join('', map { $n++; ", $_ => \$$n" } @names) . ')',
		$queue, @args{@names});
}

# Bodies that SQS accepted, in order.
sub bodies
{
	my ($queue) = @_;
	return map { $_->{body} } $sqs->accepted("$queue.fifo", 'body');
}

sub dead
{
	my ($queue) = @_;
	return rows($dbh, 'SELECT * FROM taskoutbox.dead_letter WHERE queue = $1 ORDER BY id', $queue);
}

# The requests with messages to a queue, in order, with what they said.
sub batches
{
	my ($queue) = @_;
	return map { JSON::PP::decode_json(Encode::encode('UTF-8', $_->{body}))->{Entries} }
	  $sqs->requests(op => 'SendMessageBatch', queue => "$queue.fifo", whole => 1);
}

# How many messages were in each of them, the most first: they come in any order.
sub batch_sizes
{
	my ($queue) = @_;
	return join(' ', reverse sort { $a <=> $b } map { $_->{entries} } $sqs->requests(op => 'SendMessageBatch', queue => "$queue.fifo"));
}

#
# Settings
#
{
	my $good = 'https://sqs.eu-central-1.amazonaws.com/123456789012/x.fifo';
	for my $case (
		[ "backend => 'sqs'", 'TO001', 'url missing' ],
		[ "backend => 'kafka'", 'TO010', 'backend not known' ],
		[ "url => '$good'", 'TO010', 'url of an embedded queue' ],
		[ "region => 'eu-central-1'", 'TO010', 'region of an embedded queue' ],
		[ "backend => 'sqs', url => 'https://sqs.eu-central-1.amazonaws.com/123456789012/x'", 'TO010', 'not a FIFO queue' ],
		[ "backend => 'sqs', url => 'http://sqs.eu-central-1.amazonaws.com/123456789012/x.fifo'", 'TO010', 'http to another host' ],
		[ "backend => 'sqs', url => 'http://127.0.0.1.example.com/1/x.fifo'", 'TO010', 'http to what only looks like this host' ],
		[ "backend => 'sqs', url => 'file:///x.fifo'", 'TO010', 'another protocol' ],
		[ "backend => 'sqs', url => 'https://user:secret\@example.com/1/x.fifo'", 'TO010', 'a password in the url' ],
		[ "backend => 'sqs', url => 'https://example.com/1/x.fifo?a=b'", 'TO010', 'a query' ],
		[ "backend => 'sqs', url => '$good', region => 'Mars!'", 'TO010', 'bad region' ],
		[ "backend => 'sqs', url => '$good', endpoint => 'http://example.com'", 'TO010', 'http endpoint' ],
		[ "backend => 'sqs', url => '$good', deduplication_window => '1 min'", 'TO010', 'window shorter than that of SQS' ],
		[ "backend => 'sqs', url => '$good', max_connections => 0", 'TO010', 'no connection' ],
		[ "retry_base => '2 s', retry_cap => '1 s'", 'TO010', 'retry_base longer than retry_cap' ],
		[ "backend => 'sqs', url => 'http://example.com/1/x.fifo', allow_http => true, max_connections => NULL", '00000', 'http on request' ])
	{
		$dbh->begin_work;
		is(state_of($dbh, "SELECT taskoutbox.alter_queue('default', $case->[0])"), $case->[1], "settings: $case->[2]");
		$dbh->rollback;
	}
}

#
# Everything arrives: in order, once, unchanged
#
my $url = sqs_queue($dbh, $sqs, 'orders');
is(state_of($dbh, q{SELECT * FROM taskoutbox.receive('orders')}), 'TO019', 'no receive from a queue in SQS');

$dbh->do(q{SELECT taskoutbox.pause_queue('orders')});
$dbh->do(q{
	SELECT count(*) FROM generate_series(1, 1000) n, LATERAL taskoutbox.enqueue('test',
		jsonb_build_object('n', n, 'text', repeat('é', n % 100) || '"\\/ 😀' || chr(9)), queue => 'orders',
		group_id => CASE WHEN n % 4 < 3 THEN 'group' || n % 10 END)});
my %expected = map { $_->{task_uid} => $_ } rows($dbh,
	q{SELECT format('%s:%s:%s', (SELECT i.id FROM taskoutbox.installation i), o.id, (extract(epoch FROM o.enqueued_at) * 1000000)::bigint) AS task_uid, payload, group_id, to_char(enqueued_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS enqueued_at
	FROM taskoutbox.task_outbox o WHERE queue = 'orders'});
is(scalar(bodies('orders')), 0, 'nothing is published while the queue is paused');
$dbh->do(q{SELECT taskoutbox.resume_queue('orders')});
ok(outbox_is_empty($dbh, 'orders'), 'all published');

my @got = $sqs->accepted('orders.fifo');
is(scalar(@got), 1000, 'and accepted once');
is(scalar(grep {
		my $e = $expected{ $_->{attributes}{task_uid}{StringValue} };
		$e && $e->{payload} eq $_->{body} && $e->{enqueued_at} eq $_->{attributes}{enqueued_at}{StringValue} &&
		  $_->{attributes}{task_type}{StringValue} eq 'test' &&
		  (defined $e->{group_id} ? $e->{group_id} eq $_->{group} : $_->{group} =~ /^taskoutbox:/)
	} @got), 1000, 'unchanged, with its attributes');
my (%last, $disorder);
for my $m (@got)
{
	my ($n) = $m->{body} =~ /"n": (\d+)/;
	$disorder++ if $n <= ($last{ $m->{group} } || 0);
	$last{ $m->{group} } = $n;
}
is($disorder, undef, 'in order, each group');
{
	my (%dedup, $mixed);
	$dedup{ $_->{dedup} }++ for @got;
	is(scalar(keys %dedup), 1000, 'each under an id of its own');
	for my $batch (batches('orders'))
	{
		my %groups;
		$mixed = 1 if grep { $groups{ $_->{MessageGroupId} }++ } @$batch;
		$mixed = 1 if @$batch > 10;
	}
	is($mixed, undef, 'no two messages of a group in a request, and no more than 10');
	my %connections = map { $_->{connection} => 1 } $sqs->requests(queue => 'orders.fifo');
	cmp_ok(scalar(keys %connections), '<=', 16, 'connections are kept, no more than max_connections');
}
is(metrics($dbh, 'orders')->{delivered}, 1000, 'counted as delivered');

# Headers; the trace header is one of SQS's own (C71: and the size is what is sent)
put('orders', headers => '{"traceparent": "00-1-2-3", "x-amzn-trace-id": "Root=1-5759e988-bd862e3fe1be46a994272793"}');
ok(outbox_is_empty($dbh, 'orders'), 'with headers');
{
	my ($m) = ($sqs->accepted('orders.fifo'))[-1];
	is($m->{attributes}{traceparent}{StringValue}, '00-1-2-3', 'a header is an attribute');
	is($m->{attributes}{'x-amzn-trace-id'}, undef, 'but not the trace header');
	is($m->{trace}, 'Root=1-5759e988-bd862e3fe1be46a994272793', 'which is a system attribute');
}

# C79: a delay is kept here
put('orders', payload => '"later"', deliver_at => value($dbh, q{SELECT now() + '700 ms'}));
is(scalar(grep { $_ eq '"later"' } bodies('orders')), 0, 'C79: not before it is due');
ok(outbox_is_empty($dbh, 'orders'), 'C79: but then');

# C24, C72, TO008
is(state_of($dbh, q{SELECT taskoutbox.enqueue('t', queue => 'orders', group_id => 'taskoutbox:x')}), 'TO008', 'reserved group_id');

# C69: batches by bytes
sqs_queue($dbh, $sqs, 'large', attributes => { MaximumMessageSize => 1048576 });
$dbh->do(q{SELECT taskoutbox.pause_queue('large')});
put('large', payload => qq("$_) . 'x' x 200_000 . '"') for 1 .. 12;
$dbh->do(q{SELECT taskoutbox.resume_queue('large')});
ok(outbox_is_empty($dbh, 'large'), 'C69: large ones');
is(batch_sizes('large'), '5 5 2', 'C69: as many in a request as fit into 1 MiB');

# C70, C115: the limit of the queue in SQS holds at enqueue
sqs_queue($dbh, $sqs, 'small', attributes => { MaximumMessageSize => 2048 });
ok(problem_is($dbh, 'small', undef), 'no problem');
poll(sub { metrics($dbh, 'small')->{sqs_looked_at} });
my $overhead = 146 + length('test');
put('small', payload => '"' . 'x' x (2048 - $overhead - 2) . '"');
is(state_of($dbh, q{SELECT taskoutbox.enqueue('test', to_jsonb(repeat('x', $1::int)), queue => 'small')}, 2048 - $overhead - 1),
	'TO004', 'C115: one byte too many is refused at enqueue');
ok(outbox_is_empty($dbh, 'small'), 'C70: exactly the limit is published');
# one that was there before the limit was lowered
$dbh->do(q{SELECT taskoutbox.pause_queue('small')});
my $too_long = put('small', payload => '"' . 'x' x 1500 . '"');
$sqs->call('SetQueueAttributes', QueueUrl => $sqs->url('small.fifo'), Attributes => { MaximumMessageSize => '1024' });
$dbh->do(q{SELECT taskoutbox.alter_queue('small')});    # makes the relay look again
put('small', payload => '"fits"');
$dbh->do(q{SELECT taskoutbox.resume_queue('small')});
ok(outbox_is_empty($dbh, 'small'), 'after the limit was lowered');
is_deeply([ map { [ $_->{id}, $_->{stage} ] } dead('small') ], [ [ $too_long, 'relay' ] ], 'what is too long now is a dead letter');
is((bodies('small'))[-1], '"fits"', 'and others are published');

# group_batching
sqs_queue($dbh, $sqs, 'batching', group_batching => 'true');
$dbh->do(q{SELECT taskoutbox.pause_queue('batching')});
put('batching', payload => $_, group_id => 'g') for 1 .. 25;
$dbh->do(q{SELECT taskoutbox.resume_queue('batching')});
ok(outbox_is_empty($dbh, 'batching'), 'group_batching');
is(join(' ', bodies('batching')), join(' ', 1 .. 25), 'group_batching: in order');
is(batch_sizes('batching'), '10 10 5', 'group_batching: several of a group in a request');

#
# Deduplication
#
put('orders', payload => '"first"', deduplication_id => 'interest/2026-01-31');
ok(outbox_is_empty($dbh, 'orders'), 'with a deduplication id');
is(($sqs->accepted('orders.fifo'))[-1]{dedup}, 'interest/2026-01-31', 'it is the one that SQS gets');
is(value($dbh, q{SELECT duplicate FROM taskoutbox.enqueue('test', deduplication_id => 'interest/2026-01-31', queue => 'orders')}), 1,
	'a second one is a duplicate after it was published, too');
# an entry that would end soon is prolonged before its message is sent
$dbh->do(q{SELECT taskoutbox.pause_queue('orders')});
put('orders', deduplication_id => 'old');
$dbh->do(q{UPDATE taskoutbox.deduplication SET expires_at = now() WHERE deduplication_id = 'old'});
$dbh->do(q{SELECT taskoutbox.resume_queue('orders')});
ok(outbox_is_empty($dbh, 'orders'), 'sent late');
cmp_ok(value($dbh, q{SELECT extract(epoch FROM expires_at - now()) FROM taskoutbox.deduplication WHERE deduplication_id = 'old'}), '>=', 355,
	'its id is taken for the window and a minute from then on');

#
# Transient failures: the same again, with the same id, and in order
#
my $n = 0;
sub survives
{
	my ($what, %fault) = @_;
	my $before = scalar(bodies('orders'));
	my $from = $n + 1;

	$sqs->plant(queue => 'orders.fifo', op => 'SendMessageBatch', times => 2, %fault);
	$dbh->begin_work;
	for (1 .. 20)
	{
		$n++;
		put('orders', payload => $n, group_id => 'h' . $n % 3);
	}
	$dbh->commit;
	ok(outbox_is_empty($dbh, 'orders', 30), "$what: all published");
	my @new = (bodies('orders'))[ $before .. $before + 19 ];
	is(scalar(bodies('orders')), $before + 20, "$what: none twice");
	for my $g (0 .. 2)
	{
		is(join(' ', grep { $_ % 3 == $g } @new), join(' ', grep { $_ % 3 == $g } $from .. $n), "$what: in order");
	}
	$sqs->clear;
	return;
}
survives('InternalFailure', do => 'error', code => 'InternalFailure', status => 500);
survives('InternalFailure after it was accepted', do => 'error', code => 'InternalFailure', status => 500, when => 'after');
survives('503 with Retry-After', do => 'error', code => 'ServiceUnavailable', status => 503, retry_after => 1, times => 1);
survives('throttled with 403', do => 'error', code => 'RequestThrottled', status => 403);
survives('throttled with 400', do => 'error', code => 'ThrottlingException', status => 400);
survives('connection closed', do => 'drop');
survives('connection reset after it was accepted', do => 'drop', how => 'reset', when => 'after');
survives('C08: one entry fails', do => 'entry', entries => [0], code => 'InternalError');
survives('C08: one entry throttled', do => 'entry', entries => [1], code => 'RequestThrottled', sender_fault => \1);
survives('C08: in neither list', do => 'lose', entries => [0], accept => \0);
survives('C08: in neither list, but accepted', do => 'lose', entries => [0], accept => \1);
survives('wrong MD5', do => 'md5', entries => [0]);
survives('an empty answer', do => 'answer', kind => 'empty');
survives('garbage', do => 'answer', kind => 'garbage');
survives('a huge answer', do => 'answer', kind => 'huge');
survives('a cut answer', do => 'answer', kind => 'cut');
survives('HTML of a gateway', do => 'answer', kind => 'html', status => 502, when => 'before');
survives('HTML of a gateway, accepted', do => 'answer', kind => 'html', status => 504);
survives('JSON of another kind', do => 'answer', kind => 'json');
survives('no answer in time', do => 'delay', seconds => 3);
is(metrics($dbh, 'orders')->{dead}, 0, 'nothing of that made a dead letter');
is(value($dbh, 'SELECT count(*) FROM taskoutbox.in_flight'), 0, 'and nothing is left in flight');

# C12: one group that hangs holds up no other
{
	my $fault = $sqs->plant(queue => 'orders.fifo', op => 'SendMessageBatch', group => 'slow', do => 'delay');
	put('orders', payload => '"slow"', group_id => 'slow');
	ok(poll(sub { $sqs->hits($fault) }), 'C12: one group hangs');
	put('orders', payload => '"quick"', group_id => 'quick');
	ok(poll(sub { (bodies('orders'))[-1] eq '"quick"' }, 5), 'C12: another one is published at once');
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'orders'), 'C12: and the first one in the end');
}

#
# The message's fault: it goes to the dead letters, and others go on (C11)
#
{
	$sqs->plant(op => 'SendMessageBatch', do => 'entry', body => 'poison', code => 'InvalidMessageContents', sender_fault => \1, message => 'no');
	$dbh->begin_work;
	my $bad = put('orders', payload => '"poison 1"', group_id => 'p');
	put('orders', payload => '"after it"', group_id => 'p');
	put('orders', payload => '"beside it"');
	$dbh->commit;
	ok(outbox_is_empty($dbh, 'orders'), 'poison');
	is_deeply([ map { [ $_->{id}, $_->{stage}, $_->{reason} ] } dead('orders') ],
		[ [ $bad, 'relay', 'SQS refuses it: InvalidMessageContents: no' ] ], 'is a dead letter, with the reason');
	is_deeply([ sort((bodies('orders'))[ -2, -1 ]) ], [ '"after it"', '"beside it"' ], 'others are published');
	$sqs->clear;

	# C21: redriven it has a new id, or SQS would drop it
	put('orders', payload => '"again"', deduplication_id => 'again');
	ok(outbox_is_empty($dbh, 'orders'), 'sent');
	$sqs->plant(op => 'SendMessageBatch', do => 'entry', dedup => 'twice', code => 'InvalidParameterValue', sender_fault => \1, times => 1);
	$bad = put('orders', payload => '"twice"', deduplication_id => 'twice');
	ok(outbox_is_empty($dbh, 'orders'), 'C21: refused');
	is(value($dbh, q{SELECT taskoutbox.redrive('orders', $1)}, $bad), 1, 'C21: redriven');
	ok(outbox_is_empty($dbh, 'orders'), 'C21: published');
	my ($m) = ($sqs->accepted('orders.fifo'))[-1];
	is($m->{body}, '"twice"', 'C21: accepted');
	like($m->{dedup}, qr/^taskoutbox:/, 'C21: under a new deduplication id');
	like($m->{attributes}{task_uid}{StringValue}, qr/:$bad:/, 'C21: it is the same task');
}

# A whole request that is refused because of one message: found by sending each alone
{
	$sqs->plant(op => 'SendMessageBatch', do => 'error', body => 'rotten', code => 'InvalidParameterValue', status => 400);
	$dbh->do(q{SELECT taskoutbox.pause_queue('orders')});
	my @ids = map { put('orders', payload => $_ == 5 ? '"rotten"' : $_, group_id => "r$_") } 1 .. 9;
	$dbh->do(q{SELECT taskoutbox.purge('orders', dead_letters => true)});
	$dbh->do(q{SELECT taskoutbox.resume_queue('orders')});
	ok(outbox_is_empty($dbh, 'orders'), 'a whole batch refused');
	is_deeply([ map { $_->{id} } dead('orders') ], [ $ids[4] ], 'only the one that is at fault is dead');
	is_deeply([ sort((bodies('orders'))[ -8 .. -1 ]) ], [ 1 .. 4, 6 .. 9 ], 'the others are published');
	$sqs->clear;
}

# The same for three groups in a row is no message's fault
{
	sqs_queue($dbh, $sqs, 'misconfigured');
	$sqs->plant(op => 'SendMessageBatch', queue => 'misconfigured.fifo', do => 'error', code => 'InvalidParameterValue', status => 400);
	put('misconfigured', payload => $_, group_id => "g$_") for 1 .. 10;
	my $row = problem_is($dbh, 'misconfigured', qr/^InvalidParameterValue: messages of 3 groups in a row were refused/);
	ok($row, 'three groups in a row: the queue waits');
	cmp_ok($row->{dead}, '<=', 2, 'and no more than two are dead');
	my $dead = $row->{dead};
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'misconfigured'), 'until it is mended');
	is(scalar(bodies('misconfigured')), 10 - $dead, 'then the others are published');
	is(metrics($dbh, 'misconfigured')->{dead}, $dead, 'none of them is dead');
	ok(problem_is($dbh, 'misconfigured', undef), 'and the problem is gone');
}

# on_dead_letter = block
{
	sqs_queue($dbh, $sqs, 'strict', on_dead_letter => 'block');
	$sqs->plant(op => 'SendMessageBatch', queue => 'strict.fifo', do => 'entry', body => 'poison', code => 'InvalidMessageContents', times => 1);
	put('strict', payload => '"poison"', group_id => 'g');
	put('strict', payload => '"after"', group_id => 'g');
	put('strict', payload => '"other"', group_id => 'h');
	ok(poll(sub { metrics($dbh, 'strict')->{blocked_groups} == 1 }), 'block: its group waits');
	ok(poll(sub { (bodies('strict'))[-1] eq '"other"' }), 'block: another one goes on');
	is(metrics($dbh, 'strict')->{waiting}, 1, 'block: one waits');
	is(value($dbh, q{SELECT taskoutbox.redrive('strict')}), 1, 'block: redriven');
	ok(outbox_is_empty($dbh, 'strict'), 'block: goes on');
	is(join(' ', bodies('strict')), '"other" "poison" "after"', 'block: in the order of the group');
}

#
# The destination's fault: rows wait, uncounted, and it is said what is wrong (C76)
#
for my $case (
	[ 'AccessDenied', 403, qr/^AccessDenied: SQS refuses SendMessageBatch: .*planted/, qr/sqs:SendMessage / ],
	[ 'QueueDoesNotExist', 400, qr/^QueueDoesNotExist: SQS refuses SendMessageBatch/, qr/url/ ],
	[ 'KmsDisabled', 400, qr/^KmsDisabled/, qr/KMS key/ ],
	[ 'SomethingNew', 400, qr/^SomethingNew/, qr/documentation of SQS/ ])
{
	my ($code, $status, $problem, $remedy) = @$case;
	my $offset = -s $node->logfile;
	my $before = scalar(bodies('orders'));
	my $fault = $sqs->plant(op => 'SendMessageBatch', queue => 'orders.fifo', do => 'error', code => $code, status => $status);

	put('orders', payload => $_, group_id => 'g') for 1 .. 3;
	my $row = problem_is($dbh, 'orders', $problem);
	ok($row, "$code: the queue waits");
	like($row->{remedy}, $remedy, "$code: and says what to do");
	ok($row->{next_try}, "$code: and when the next try is");
	ok(poll(sub { $sqs->hits($fault) >= 3 }), "$code: it tries again");
	is(join(' ', map { $_->{receive_count} } rows($dbh, q{SELECT coalesce(receive_count, 0) AS receive_count FROM taskoutbox.task_outbox})), '0 0 0', "$code: uncounted");
	ok(poll(
			sub {
				$dbh->do(q{SELECT taskoutbox.cancel(id) FROM taskoutbox.task_outbox});
				value($dbh, q{SELECT count(*) FROM taskoutbox.task_outbox}) == 0;
			}), "$code: what is known not to be there can be cancelled");
	put('orders', payload => '"mended"', group_id => 'g');
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'orders'), "$code: goes on when it is mended");
	is(scalar(bodies('orders')), $before + 1, "$code: published");
	is(metrics($dbh, 'orders')->{dead}, 1, "$code: no dead letter");
	ok(problem_is($dbh, 'orders', undef), "$code: nothing is wrong any more");
	my $log = log_of($node, $offset);
	is(scalar(() = $log =~ /queue "orders" is stopped: $code/g), 1, "$code: one line in the log");
	is(scalar(() = $log =~ /queue "orders" goes on/g), 1, "$code: and one when it goes on");
}

# C80: throttled for longer: less and less is sent, and it is said after a while
{
	my $fault = $sqs->plant(op => 'SendMessageBatch', queue => 'orders.fifo', do => 'error', code => 'RequestThrottled', status => 403);
	put('orders', payload => 1, group_id => 'g');
	ok(problem_is($dbh, 'orders', qr/^RequestThrottled/), 'C80: throttled');
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'orders'), 'C80: until it is not');
}

# C77: the clock
{
	$sqs->clock(skew => 1200);
	put('orders', payload => 1, group_id => 'g');
	my $row = problem_is($dbh, 'orders', qr/clock of this host is off by -1(?:199|200|201) s/);
	ok($row, 'C77: the clock is off, and by how much');
	like($row->{remedy}, qr/Set the clock/, 'C77: what to do');
	$sqs->clock(skew => 0);
	ok(outbox_is_empty($dbh, 'orders'), 'C77: published when it is right');
}

# First contact
{
	sqs_queue($dbh, $sqs, 'no_dlq', plain => 1);
	put('no_dlq', payload => 1);
	my $row = problem_is($dbh, 'no_dlq', qr/has no dead-letter queue/);
	ok($row, 'a queue without dead letters is refused');
	like($row->{remedy}, qr/require_dlq/, 'with the way out');
	is(scalar(bodies('no_dlq')), 0, 'and gets nothing');
	$dbh->do(q{SELECT taskoutbox.alter_queue('no_dlq', require_dlq => false)});
	ok(outbox_is_empty($dbh, 'no_dlq'), 'unless that is allowed');

	my $fault = $sqs->plant(op => 'GetQueueAttributes', queue => 'unseen.fifo', do => 'error', code => 'AccessDenied', status => 403);
	sqs_queue($dbh, $sqs, 'unseen');
	put('unseen', payload => 1);
	$row = problem_is($dbh, 'unseen', qr/^AccessDenied: SQS refuses GetQueueAttributes/);
	ok($row, 'attributes that the relay may not read');
	like($row->{remedy}, qr/sqs:GetQueueAttributes/, 'the missing action is named');
	$dbh->do(q{SELECT taskoutbox.alter_queue('unseen', require_dlq => false)});
	ok(outbox_is_empty($dbh, 'unseen'), 'are not needed without require_dlq');
	$sqs->clear;

	$dbh->do(q{SELECT taskoutbox.create_queue('nowhere', 'sqs', url => 'http://127.0.0.1:1/1/nowhere.fifo', retry_base => '20 ms')});
	put('nowhere', payload => 1);
	ok(problem_is($dbh, 'nowhere', qr/^no connection: /), 'no connection');
	is(value($dbh, q{SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'nowhere' AND receive_count IS NULL}), 1, 'the row waits');
	$sqs->create_queue_with_dead_letters('nowhere.fifo', 3);
	$dbh->do(q{SELECT taskoutbox.alter_queue('nowhere', url => $1)}, undef, $sqs->url('nowhere.fifo'));
	ok(outbox_is_empty($dbh, 'nowhere'), 'and is published when the url is right');
}

# retry_now does not wait for the next try
{
	sqs_queue($dbh, $sqs, 'slow', retry_base => '1 hour', retry_cap => '1 hour');
	ok(poll(sub { metrics($dbh, 'slow')->{sqs_looked_at} }), 'retry_now: known');
	$sqs->plant(op => 'SendMessageBatch', queue => 'slow.fifo', do => 'error', code => 'AccessDenied', status => 403, times => 1);
	put('slow', payload => 1);
	ok(problem_is($dbh, 'slow', qr/^AccessDenied/), 'retry_now: a queue that waits');
	is(value($dbh, q{SELECT taskoutbox.retry_now('slow')}), 1, 'retry_now: one task');
	ok(outbox_is_empty($dbh, 'slow', 10), 'retry_now: goes on');
	my $fault = $sqs->plant(op => 'SendMessageBatch', queue => 'slow.fifo', do => 'lose', entries => [0], times => 1);
	my $id = put('slow', payload => 2, group_id => 'g');
	ok(poll(sub { metrics($dbh, 'slow')->{retried} == 1 }), 'retry_now: a message that waits');
	metrics($dbh, 'slow');    # the relay has finished that round
	# As it counted last: the task before it may still be in that.
	cmp_ok(value($dbh, q{SELECT taskoutbox.retry_now('slow')}), '>=', 1, 'retry_now: at least that task');
	ok(outbox_is_empty($dbh, 'slow', 10), 'retry_now: goes on');
}

# redrive: what is dead in SQS is moved back there
{
	my $before = $sqs->queue('orders.fifo')->{accepted};
	my $dead = $sqs->url('orders-dead.fifo');
	$sqs->call('SendMessage', QueueUrl => $dead, MessageBody => '"dead there"', MessageGroupId => 'g', MessageDeduplicationId => 'x');
	$dbh->do(q{SELECT taskoutbox.redrive('orders')});
	ok(poll(sub { (metrics($dbh, 'orders')->{sqs_redrive} || '') =~ /: has begun$/ }), 'redrive: begun');
	ok(poll(sub { $sqs->queue('orders.fifo')->{accepted} == $before + 1 }), 'redrive: moved back in SQS');
	$sqs->plant(op => 'StartMessageMoveTask', do => 'error', code => 'AccessDenied', status => 403, times => 1);
	$dbh->do(q{SELECT taskoutbox.redrive('orders')});
	ok(poll(sub { metrics($dbh, 'orders')->{sqs_redrive} =~ /: failed: AccessDenied$/ }), 'redrive: what went wrong');
	ok(problem_is($dbh, 'orders', undef), 'redrive: which holds up no message');
	$dbh->do(q{SELECT taskoutbox.redrive('no_dlq')});
	ok(poll(sub { (metrics($dbh, 'no_dlq')->{sqs_redrive} || '') =~ /is not possible/ }), 'redrive: not without dead letters');

	# It is asked for by the transaction, as far as that commits.  The last one shows
	# that those before would have begun by then.
	my $moves = sub { scalar(my @all = $sqs->requests(op => 'StartMessageMoveTask')) };
	my $n = $moves->();
	my $looked = metrics($dbh, 'orders')->{sqs_redrive};
	$dbh->begin_work;
	$dbh->do(q{SELECT taskoutbox.redrive('orders')});
	$dbh->rollback;
	$dbh->begin_work;
	$dbh->do($_) for (q{SAVEPOINT a}, q{SELECT taskoutbox.redrive('orders')}, q{SAVEPOINT b}, q{SELECT taskoutbox.redrive('orders')},
		q{RELEASE b}, q{ROLLBACK TO a});
	$dbh->commit;
	$dbh->begin_work;
	$dbh->do(q{SELECT taskoutbox.redrive('orders')});
	is(state_of($dbh, q{PREPARE TRANSACTION 'redrive'}), '0A000', 'redrive: not in a prepared transaction');
	$dbh->rollback;
	ok(problem_is($dbh, 'orders', undef), 'redrive: a round later');
	$dbh->begin_work;
	$dbh->do($_) for (q{SAVEPOINT a}, q{SELECT taskoutbox.redrive('strict')}, q{RELEASE a}, q{SAVEPOINT b}, q{SELECT taskoutbox.redrive('orders')}, q{ROLLBACK TO b});
	is($moves->(), $n, 'redrive: nothing is asked for before the commit');
	$dbh->commit;
	ok(poll(sub { (metrics($dbh, 'strict')->{sqs_redrive} || '') =~ /: has begun$/ }), 'redrive: what a released savepoint asked for has begun');
	is($moves->(), $n + 1, 'redrive: and nothing of what was rolled back');
	is(metrics($dbh, 'orders')->{sqs_redrive}, $looked, 'redrive: as the figures say');
}

# Several queues change where their messages go, in one transaction; and take it back
{
	my @both = ('moved1', 'moved2');
	sqs_queue($dbh, $sqs, $_) for @both;
	$sqs->create_queue_with_dead_letters("$_-new.fifo", 3) for @both;
	$dbh->begin_work;
	for my $queue (@both)
	{
		$dbh->do('SAVEPOINT a');
		$dbh->do('SELECT taskoutbox.alter_queue($1, url => $2)', undef, $queue, $sqs->url("$queue-new.fifo"));
		$dbh->do('ROLLBACK TO a');
		$dbh->do('SELECT taskoutbox.alter_queue($1, url => $2)', undef, $queue, $sqs->url("$queue-new.fifo"));
	}
	is(state_of($dbh, q{PREPARE TRANSACTION 'move'}), '0A000', 'moved: not in a prepared transaction');
	$dbh->rollback;
	put($_, payload => '"old"') for @both;
	ok(outbox_is_empty($dbh, $_), "$_: published") for @both;
	$dbh->begin_work;
	$dbh->do('SELECT taskoutbox.alter_queue($1, url => $2)', undef, $_, $sqs->url("$_-new.fifo")) for @both;
	$dbh->commit;
	put($_, payload => '"new"') for @both;
	ok(outbox_is_empty($dbh, $_), "$_: published after it was moved") for @both;
	is(join(' ', map { bodies($_), bodies("$_-new") } @both), '"old" "new" "old" "new"', 'moved: each to where its queue was then');
}

# taskoutbox.publish = off: this server sends nothing, and says so
{
	my $publish = sub { $node->append_conf('postgresql.conf', "taskoutbox.publish = $_[0]"); $node->reload; };
	my $offset = -s $node->logfile;
	$sqs->plant(op => 'SendMessageBatch', queue => 'orders.fifo', do => 'delay', times => 1);
	my $before = scalar(bodies('orders'));
	put('orders', payload => '"on its way"', group_id => 'g');
	ok(poll(sub { $sqs->hits > 0 }), 'publish: a request is on its way');
	$publish->('off');
	my $row = problem_is($dbh, 'orders', qr/^taskoutbox.publish is off/);
	ok($row, 'publish: off, which is said');
	like($row->{remedy}, qr/set it to on/, 'publish: and what to do');
	is($row->{next_try}, undef, 'publish: there is no next try');
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'orders'), 'publish: what was on its way ends as usual');
	my $seen = ($sqs->requests)[-1]{number};
	put('orders', payload => $_, group_id => 'g') for 1 .. 5;
	put('small', payload => '"x"');
	my $moved = metrics($dbh, 'orders')->{sqs_redrive};
	$dbh->do(q{SELECT taskoutbox.redrive('orders')});
	$dbh->do(q{SELECT taskoutbox.alter_queue('orders')});
	enqueue($dbh, undef, '"embedded"', 'default');
	is(join(' ', map { $_->{payload} } receive($dbh, wait => '10 s')), '"embedded"', 'publish: an embedded queue works');
	$dbh->do(q{SELECT taskoutbox.purge('default')});
	is(metrics($dbh, 'orders')->{waiting}, 5, 'publish: tasks wait');
	is(scalar(my @sent = $sqs->requests(since => $seen)), 0, 'publish: nothing at all is sent');
	$dbh->do('CREATE ROLE nobody_of_publish');
	is(state_of($dbh, q{ALTER ROLE nobody_of_publish SET taskoutbox.publish = on}), '55P02', 'publish: not of a role');
	$dbh->do('DROP ROLE nobody_of_publish');
	# also when the server starts like this
	$dbh->disconnect;
	{
		local %ENV = (%ENV, $sqs->environment);
		$node->restart;
	}
	wait_for_relay($node);
	$dbh = session($node);
	ok(problem_is($dbh, 'orders', qr/^taskoutbox.publish is off/), 'publish: and after a restart');
	is(scalar(@sent = $sqs->requests(since => $seen)), 0, 'publish: still nothing');
	$publish->('on');
	ok(outbox_is_empty($dbh, 'orders'), 'publish: on again, and all goes on by itself');
	ok(outbox_is_empty($dbh, 'small'), 'publish: each queue');
	is(join(' ', (bodies('orders'))[ $before .. $before + 5 ]), '"on its way" 1 2 3 4 5', 'publish: in order, once');
	ok(problem_is($dbh, 'orders', undef), 'publish: nothing is wrong any more');
	my $log = log_of($node, $offset);
	is(scalar(() = $log =~ /queue "orders" is stopped: taskoutbox.publish is off/g), 2, 'publish: one line in the log, each time it was found so');
	is(scalar(() = $log =~ /queue "orders" goes on/g), 1, 'publish: and one when it goes on');
}

# A copy of the database publishes nothing
{
	$dbh->do(q{SELECT taskoutbox.pause_queue('orders')});
	put('orders', payload => '"once"');
	$dbh->do('CREATE DATABASE copy TEMPLATE postgres');
	wait_for_relay($node, 'copy');
	my $copy = session($node, dbname => 'copy');
	$copy->do(q{SELECT taskoutbox.resume_queue('orders')});
	ok(problem_is($copy, 'orders', qr/^the database is a copy/), 'a copy publishes nothing');
	is(scalar(grep { $_ eq '"once"' } bodies('orders')), 0, 'indeed');
	$copy->do('SELECT taskoutbox.confirm()');
	ok(outbox_is_empty($copy, 'orders'), 'until it is confirmed');
	is(scalar(grep { $_ eq '"once"' } bodies('orders')), 1, 'then it does');
	$copy->disconnect;
	$dbh->do('DROP DATABASE copy');
	$dbh->do(q{SELECT taskoutbox.purge('orders')});
	$dbh->do(q{SELECT taskoutbox.resume_queue('orders')});
}

# Figures
{
	ok(poll(sub { defined metrics($dbh, 'orders')->{sqs_dead_letters} }), 'figures of the dead letters in SQS');
	$dbh->do(q{SELECT taskoutbox.alter_queue('orders')});
	ok(poll(sub { metrics($dbh, 'orders')->{sqs_visible} == $sqs->queue('orders.fifo')->{visible} }), 'and of the queue');
}

#
# While SQS hangs
#
{
	my $fault = $sqs->plant(op => 'SendMessageBatch', queue => 'orders.fifo', do => 'delay');
	$node->append_conf('postgresql.conf', "taskoutbox.request_timeout = '60s'");
	$node->reload;
	my $id = put('orders', payload => '"hanging"', group_id => 'g');
	ok(poll(sub { $sqs->hits($fault) == 1 }), 'hang: a request hangs');
	is(value($dbh, 'SELECT taskoutbox.cancel($1)', $id), 0, 'hang: a message on its way cannot be cancelled');
	is(metrics($dbh, 'orders')->{in_flight}, 1, 'hang: it is in flight');
	is(state_of($dbh, q{SELECT taskoutbox.alter_queue('orders', url => 'https://sqs.eu-central-1.amazonaws.com/1/other.fifo')}), 'TO018',
		'hang: the url cannot be changed');
	is(state_of($dbh, q{SELECT taskoutbox.alter_queue('orders', backend => 'embedded')}), 'TO018', 'hang: nor the backend');
	is(state_of($dbh, q{SELECT taskoutbox.alter_queue('orders', endpoint => 'https://sqs.eu-central-1.amazonaws.com')}), 'TO018', 'hang: nor the endpoint');
	is(state_of($dbh, q{SELECT taskoutbox.alter_queue('orders', region => 'us-east-1')}), 'TO018', 'hang: nor the region');
	is(value($dbh, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'taskoutbox relay' AND (backend_xmin IS NOT NULL OR xact_start IS NOT NULL)}),
		0, 'hang: the relay holds no snapshot and no transaction');
	is(value($dbh, q{SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE backend_type = 'taskoutbox relay'
		AND (locktype <> 'virtualxid')}), 0, 'hang: and no lock');
	my $start = mono();
	$dbh->do('VACUUM FULL taskoutbox.task_outbox');
	cmp_ok(mono() - $start, '<', 3, 'hang: VACUUM FULL does not wait for it');
	is(state_of($dbh, q{SELECT taskoutbox.alter_queue('orders', retry_cap => '300 ms')}), '00000', 'hang: other settings can be changed');

	# the relay dies: the next one sends the same again
	my $old = relay_pid($dbh);
	value($dbh, 'SELECT pg_terminate_backend($1)', $old);
	ok(poll(sub { $sqs->hits($fault) == 2 }), 'hang: a new relay sends it again');
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'orders'), 'hang: published in the end');
	is(scalar(grep { $_ eq '"hanging"' } bodies('orders')), 1, 'hang: once');
	is(scalar($sqs->duplicates('orders.fifo')) > 0, 1, 'hang: SQS dropped the second one by its id');

	# What comes late says nothing about the time since then
	sqs_queue($dbh, $sqs, 'late');
	my %late = map { $_ => $sqs->plant(op => 'SendMessageBatch', queue => 'late.fifo', do => 'delay', body => $_) } qw(fine refused);
	$sqs->plant(op => 'SendMessageBatch', queue => 'late.fifo', do => 'error', body => $_, code => 'InvalidParameterValue', status => 400)
	  for qw(wrong refused);
	for (qw(fine refused))
	{
		put('late', payload => qq("$_"), group_id => $_);
		ok(poll(sub { $sqs->hits($late{$_}) == 1 }), 'hang: two requests');
	}
	put('late', payload => qq("wrong $_"), group_id => $_) for 1 .. 4;
	my $row = problem_is($dbh, 'late', qr/groups in a row were refused/);
	is($row->{dead}, 2, 'hang: others are refused, and the queue waits');
	$sqs->clear($late{fine});
	ok(poll(sub { value($dbh, q(SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'late' AND payload = '"fine"')) == 0 }),
		'hang: one was accepted, late');
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'late'), 'hang: the other one was refused, late');
	is(metrics($dbh, 'late')->{dead}, 2, 'hang: it is not dead');
	is(scalar(grep { /refused/ } bodies('late')), 1, 'hang: but sent again');

	# DROP DATABASE, and a shutdown
	$dbh->do('CREATE DATABASE doomed');
	my $doomed = session($node, dbname => 'doomed');
	$doomed->do('CREATE EXTENSION taskoutbox');
	wait_for_relay($node, 'doomed');
	sqs_queue($doomed, $sqs, 'doomed');
	$fault = $sqs->plant(op => 'SendMessageBatch', queue => 'doomed.fifo', do => 'delay');
	value($doomed, q{SELECT id FROM taskoutbox.enqueue('t', queue => 'doomed')});
	ok(poll(sub { $sqs->hits($fault) }), 'hang: another one');
	$doomed->disconnect;
	$start = mono();
	$dbh->do('DROP DATABASE doomed');
	cmp_ok(mono() - $start, '<', 3, 'hang: DROP DATABASE does not wait for it');

	$fault = $sqs->plant(op => 'SendMessageBatch', queue => 'orders.fifo', do => 'delay');
	put('orders', payload => '"shutdown"', group_id => 'g');
	ok(poll(sub { $sqs->hits($fault) }), 'hang: and one more');
	$dbh->disconnect;
	$start = mono();
	$node->stop('fast');
	cmp_ok(mono() - $start, '<', 3, 'hang: a fast shutdown does not wait for it');
	$sqs->clear;
}

# C109
my $log = log_of($node);
unlike($log, qr/\Q@{[ $sqs->secret_key ]}\E/, 'C109: no secret in the log');
unlike($log, qr/poison|hanging/, 'and no payload');
unlike($log, qr/PANIC|relay (?:ERROR|FATAL):  (?!terminating|database \d+ does not exist)/, 'and no error of a relay');

done_testing();
