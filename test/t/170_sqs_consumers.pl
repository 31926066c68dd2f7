# Consumer workers of queues in SQS: controllers are called as with the embedded
# queue; what SQS adds are receive counts, visibility timeouts that have to be
# renewed, and everything that can be wrong on the way to it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FakeSqs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SqsTest;
use TaskoutboxTest;
use Test::More;

plan skip_all => FakeSqs::missing() if FakeSqs::missing();

my ($sqs, $node) = new_sqs_node('sqs_consumers', conf => "max_worker_processes = 40\ntaskoutbox.request_timeout = '1s'\n");
my $dbh = session($node);

create_controller_role($dbh, $_) for qw(app other);
$dbh->do('CREATE SEQUENCE public.runs');
$dbh->do('CREATE TABLE public.done (seq int DEFAULT nextval(\'runs\'), n int, note text, role text DEFAULT session_user, receive_count int, message jsonb, at timestamptz DEFAULT clock_timestamp())');
$dbh->do('GRANT ALL ON public.done, public.runs TO app, other');

# A controller that takes the message m, and writes down what it did.
sub controller
{
	my ($type, $queue, %opt) = @_;
	my $role = $opt{role} || 'app';
	my $body = $opt{body} || '';
	$dbh->do("SET SESSION AUTHORIZATION $role");
	$dbh->do(qq(CREATE OR REPLACE FUNCTION $role."$type"(m taskoutbox.message) RETURNS void LANGUAGE plpgsql AS \$f\$ BEGIN $body
		INSERT INTO public.done (n, note, receive_count, message) VALUES ((m.payload ->> 'n')::int, m.queue, m.receive_count, to_jsonb(m)); END \$f\$));
	$dbh->do('RESET SESSION AUTHORIZATION');
	value($dbh, 'SELECT taskoutbox.register_controller($1, $2::regprocedure, $3, $4)',
		$type, qq($role."$type"(taskoutbox.message)), $opt{idempotency} || 'atomic', $queue);
	return;
}

sub put
{
	my ($type, $payload, $queue, $group) = @_;
	return value($dbh, 'SELECT id FROM taskoutbox.enqueue($1, $2::jsonb, group_id => $3, queue => $4)', $type, $payload, $group, $queue);
}

sub wait_for
{
	my ($what, $sql, @bind) = @_;
	return ok(poll(sub { value($dbh, $sql, @bind) }, 40), $what)
	  || diag(explain([ rows($dbh, 'SELECT queue, task_type, workers, problem FROM taskoutbox.controller_status') ], [ map { $_->{name} ? $_ : () } $sqs->{ready} ]));
}

# SQS has nothing of a queue any more, neither visible nor in flight.
sub wait_empty
{
	my ($queue, $what) = @_;
	my $state;
	return ok(poll(
			sub {
				return 0 unless value($dbh, 'SELECT count(*) = 0 FROM taskoutbox.task_outbox WHERE queue = $1', $queue);
				$state = $sqs->queue("$queue.fifo");
				return $state->{visible} + $state->{in_flight} == 0;
			}, 40), $what)
	  || diag(explain($state, [ rows($dbh, 'SELECT queue, task_type, workers, problem FROM taskoutbox.controller_status') ]));
}

sub done
{
	my ($queue) = @_;
	return value($dbh, q(SELECT string_agg(n::text, ' ' ORDER BY seq) FROM public.done WHERE note = $1), $queue) // '';
}

# Bodies of the dead letters in SQS.
sub dead
{
	my ($queue) = @_;
	return map { $_->{body} } $sqs->accepted("$queue-dead.fifo", 'body');
}

# Waits until controller_status says that of a queue; undef: nothing is wrong.
sub status_is
{
	my ($queue, $pattern, $what) = @_;
	my $problem;
	return ok(poll(
			sub {
				$problem = value($dbh, 'SELECT max(problem) FROM taskoutbox.controller_status WHERE queue = $1', $queue);
				return defined $pattern ? ($problem // '') =~ $pattern : !defined $problem;
			}, 30), $what)
	  || diag($problem // 'no problem');
}

sub requests
{
	my ($queue, $op) = @_;
	return $sqs->requests(op => $op, queue => "$queue.fifo");
}

#
# As with the embedded queue
#
# An aborted poll can have taken a message: that comes back after this.
sqs_queue($dbh, $sqs, 'plain', visibility_timeout => '3 s');
controller('plain', 'plain');
my $id = value($dbh, q(SELECT id FROM taskoutbox.enqueue('plain', '{"n": 1, "s": "\\u00e9 \\" \\\\ \\ud83d\\ude00"}', 'g', 'd', 'plain',
	headers => '{"traceparent": "00-1", "X-Amzn-Trace-Id": "Root=1-2"}')));
wait_empty('plain', 'a controller is called for a task that went through SQS');
my ($m) = $sqs->accepted('plain.fifo');
my $uid = $m->{attributes}{task_uid}{StringValue};
is(value($dbh, q(SELECT (message - 'enqueued_at')::text FROM public.done WHERE note = 'plain')),
	value($dbh, q(SELECT jsonb_build_object('id', $1::bigint, 'receipt_handle', NULL, 'queue', 'plain', 'task_type', 'plain',
		'payload', '{"n": 1, "s": "\\u00e9 \\" \\\\ \\ud83d\\ude00"}'::jsonb, 'group_id', 'g', 'deduplication_id', 'd',
		'headers', '{"traceparent": "00-1", "X-Amzn-Trace-Id": "Root=1-2"}'::jsonb, 'receive_count', 1, 'last_error', NULL, 'uid', $2::text)::text), $id, $uid),
	'and gets the message that was enqueued');
is(value($dbh, q(SELECT to_char((message ->> 'enqueued_at')::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM public.done WHERE note = 'plain')),
	$m->{attributes}{enqueued_at}{StringValue}, 'with the time of its enqueue');
is(value($dbh, q(SELECT count(*) FROM taskoutbox.ledger WHERE id = $1 AND consumer = 'taskoutbox:controllers'), $uid), 1, 'its uid is in the ledger');
put('plain', '{"n": 2}', 'plain');
wait_empty('plain', 'one without a group');
is(value($dbh, q(SELECT format('%s %s %s', message ->> 'group_id', message ->> 'deduplication_id', message ->> 'headers') FROM public.done WHERE n = 2)),
	'  ', 'has none for its controller, nor a deduplication id, nor headers');

sqs_queue($dbh, $sqs, 'natural');
controller('natural', 'natural', idempotency => 'natural');
my $before = value($dbh, 'SELECT count(*) FROM taskoutbox.ledger');
put('natural', '{"n": 1}', 'natural');
wait_empty('natural', 'idempotency = natural');
is(done('natural') . ' ' . value($dbh, 'SELECT count(*) FROM taskoutbox.ledger'), "1 $before", 'no row in the ledger');

sqs_queue($dbh, $sqs, 'many', consumers => 3, group_batching => 'true');
rows($dbh, q(SELECT e.id FROM generate_series(1, 1000) n, LATERAL taskoutbox.enqueue('many', jsonb_build_object('n', n), group_id => 'g' || n % 10, queue => 'many') e));
controller('many', 'many');
wait_empty('many', '1000 tasks of 10 groups by 3 workers');
is(value($dbh, q(SELECT count(*) || ' ' || count(DISTINCT n) FROM public.done WHERE note = 'many')), '1000 1000', 'each once');
is(value($dbh, q(SELECT count(*) FROM (SELECT n - lag(n) OVER (PARTITION BY n % 10 ORDER BY seq) AS step
	FROM public.done WHERE note = 'many') s WHERE step <> 10)), 0, 'in the order of their groups');
is(value($dbh, q(SELECT max(workers) FROM taskoutbox.controller_status WHERE queue = 'many')), 3, 'consumers = 3: three workers');
note(sprintf('%d receives, %d deletes for them', scalar(requests('many', 'ReceiveMessage')), scalar(requests('many', 'DeleteMessageBatch'))));
cmp_ok(scalar(requests('many', 'ReceiveMessage')), '<', 700, 'several come in a receive');

#
# Nothing is held while a worker waits
#
my $idle = q(FROM pg_stat_activity a WHERE backend_type = 'taskoutbox consumer' AND usename = 'app');
wait_for('all wait, in no transaction', "SELECT count(*) = 5 AND count(xact_start) = 0 AND count(backend_xmin) = 0 AND count(backend_xid) = 0 $idle");
is(value($dbh, "SELECT count(*) FROM pg_locks WHERE pid IN (SELECT pid $idle)"), 0, 'and without a lock');
my $start = mono();
put('plain', '{"n": 3}', 'plain');
wait_empty('plain', 'a task wakes them');
cmp_ok(mono() - $start, '<', 3, 'at once');

# Paused, also in the middle of a long poll
$dbh->do(q(SELECT taskoutbox.pause_queue('plain')));
poll(sub { value($dbh, q(SELECT wait_event_type = 'Extension' AND state = 'idle' FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer' LIMIT 1)) });
my $receives = requests('plain', 'ReceiveMessage');
$sqs->call('SendMessage', QueueUrl => $sqs->url('plain.fifo'), MessageBody => '{"n": 4}', MessageGroupId => 'p', MessageDeduplicationId => 'paused',
	MessageAttributes => { task_type => { DataType => 'String', StringValue => 'plain' }, task_uid => { DataType => 'String', StringValue => ('0' x 36) . ':1:1' } });
put('natural', '{"n": 2}', 'natural');
wait_for('other queues go on', q(SELECT count(*) = 1 FROM public.done WHERE note = 'natural' AND n = 2));
is($sqs->queue('plain.fifo')->{visible}, 1, 'a paused queue is not received from');
is(scalar(requests('plain', 'ReceiveMessage')), $receives, 'nor asked');
$dbh->do(q(SELECT taskoutbox.resume_queue('plain')));
wait_empty('plain', 'until it is resumed');
is(done('plain'), '1 2 3 4', 'in order');

# A copy of another database does nothing by itself.
$dbh->do(q(UPDATE taskoutbox.installation_pin SET system_identifier = 'another'));
wait_for('a copy has no workers', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer'));
status_is('plain', qr/confirm/, 'the view says so');
$dbh->do('SELECT taskoutbox.confirm()');
status_is('plain', undef, 'until it is confirmed');

#
# Failures
#
sqs_queue($dbh, $sqs, 'fails', retry_base => '1 s', retry_cap => '1 s', consumers => 2, group_batching => 'true');
controller('fails', 'fails', body => q(IF m.payload ? 'fail' THEN RAISE EXCEPTION 'no luck'; END IF;));
my $log = -s $node->logfile;
$dbh->begin_work;
my @ids = map { put('fails', $_, 'fails', 'stuck') } '{"n": 1}', '{"n": 2, "fail": "hunter2"}', map { qq({"n": $_}) } 3 .. 9;
put('fails', qq({"n": 1$_}), 'fails', "free$_") for 0 .. 5;
$dbh->commit;
wait_empty('fails', 'one of a group fails too often');
is_deeply([ dead('fails') ], ['{"n": 2, "fail": "hunter2"}'], 'SQS makes a dead letter of it, and of no other');
is(join(' ', grep { $_ < 10 } split / /, done('fails')), '1 3 4 5 6 7 8 9', 'its group goes on after it, in order');
my $text = log_of($node, $log);
is(scalar(() = $text =~ /LOG:  task $ids[1] of type "fails" failed: no luck/g), 3, 'each failure is one line in the log');
unlike($text, qr/hunter2/, 'without the payload');
my ($failed_at) = map { $_->{at} } $sqs->accepted('fails-dead.fifo', 'at');
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note = 'fails' AND n BETWEEN 3 AND 9 AND extract(epoch FROM at) < $1), $failed_at), 0, 'and not before');

# Its group waits, others do not.
sqs_queue($dbh, $sqs, 'stuck', retry_base => '1 hour', retry_cap => '1 hour');
controller('stuck', 'stuck', body => q(IF m.payload ? 'fail' THEN RAISE EXCEPTION 'no luck'; END IF;));
put('stuck', $_, 'stuck', 'g') for '{"n": 1}', '{"n": 2, "fail": true}', '{"n": 3}';
put('stuck', qq({"n": 1$_}), 'stuck', "free$_") for 0 .. 5;
wait_for('other groups do not wait for one that failed', q(SELECT count(*) = 7 FROM public.done WHERE note = 'stuck'));
ok(poll(sub { my $state = $sqs->queue('stuck.fifo'); $state->{in_flight} == 1 && $state->{visible} == 1 }), 'its own waits');
is(done('stuck') =~ /\b3\b/ ? 1 : 0, 0, 'in order');

# It is the same task after a redrive by SQS.
controller('fails', 'fails');
value($dbh, q(SELECT taskoutbox.redrive('fails')));
wait_for('redriven, and done', q(SELECT count(*) = 1 FROM public.done WHERE note = 'fails' AND n = 2));
is(value($dbh, q(SELECT message ->> 'uid' FROM public.done WHERE note = 'fails' AND n = 2)),
	(grep { $_->{body} =~ /"n": 2/ } $sqs->accepted('fails.fifo'))[0]{attributes}{task_uid}{StringValue}, 'under its uid');

# What cannot be handled: no controller, not ours, not JSON
$log = -s $node->logfile;
$id = put('nobody', '{}', 'fails');
my $url = $sqs->url('fails.fifo');
$sqs->call('SendMessage', QueueUrl => $url, MessageBody => 'hello', MessageGroupId => 'a', MessageDeduplicationId => 'foreign');
$sqs->call('SendMessage', QueueUrl => $url, MessageBody => 'hello', MessageGroupId => 'b', MessageDeduplicationId => 'no-json',
	MessageAttributes => { task_type => { DataType => 'String', StringValue => 'fails' }, task_uid => { DataType => 'String', StringValue => "$uid" } });
wait_empty('fails', 'what cannot be handled');
is(join('|', sort((dead('fails'))[ 1 .. 3 ])), 'hello|hello|{}', 'becomes dead letters');
$text = log_of($node, $log);
like($text, qr/LOG:  task $id of type "nobody" failed: its type has no controller in queue "fails"/, 'no controller: said');
like($text, qr/LOG:  message \S+ of SQS failed: it was not sent by taskoutbox/, 'not ours: said');
like($text, qr/LOG:  message \S+ of SQS failed: its body is not JSON/, 'not JSON: said');

# What the ledger has is not done again: as if the worker had died after its commit.
sqs_queue($dbh, $sqs, 'again', visibility_timeout => '1 s');
controller('again', 'again');
my $fault = $sqs->plant(op => 'DeleteMessageBatch', queue => 'again.fifo', do => 'lose', entries => [0], accept => \0, times => 1);
put('again', '{"n": 1}', 'again');
wait_empty('again', 'an answer that does not name the message: deleted again');
$sqs->plant(op => 'DeleteMessageBatch', queue => 'again.fifo', do => 'entry', entries => [0], code => 'ReceiptHandleIsInvalid', sender_fault => \1, times => 1);
$log = -s $node->logfile;
put('again', '{"n": 2}', 'again');
wait_empty('again', 'a handle that is not good any more: it comes again');
is(done('again'), '1 2', 'and is not done again');
unlike(log_of($node, $log), qr/failed|again\.fifo|consumer gets/, 'which is no error');
is(value($dbh, q(SELECT max(receive_count) FROM public.done WHERE note = 'again')), 1, 'the first receive did it');

#
# Time
#
sqs_queue($dbh, $sqs, 'slow', visibility_timeout => '1 s', consumers => 2);
controller('slow', 'slow', body => q(PERFORM pg_sleep((m.payload ->> 'sleep')::float);));
put('slow', '{"n": 1, "sleep": 3.3}', 'slow', 'g');
put('slow', '{"n": 2, "sleep": 0}', 'slow', 'g');
put('slow', '{"n": 3, "sleep": 0}', 'slow', 'h');
wait_empty('slow', 'slower than three visibility timeouts');
is(done('slow'), '3 1 2', 'its group waits for it, others do not');
is(value($dbh, q(SELECT string_agg(receive_count::text, ' ' ORDER BY n) FROM public.done WHERE note = 'slow')), '1 1 1', 'and nobody else got it meanwhile');
cmp_ok(scalar(requests('slow', 'ChangeMessageVisibilityBatch')), '>=', 4, 'its visibility timeout was renewed');

# Renewals that fail: it is lost, comes again, and is done once.
$fault = $sqs->plant(op => 'ChangeMessageVisibilityBatch', queue => 'slow.fifo', do => 'error', code => 'AccessDenied', status => 403);
$log = -s $node->logfile;
put('slow', '{"n": 4, "sleep": 1.8}', 'slow', 'g');
wait_for('it is done, though it was lost meanwhile', q(SELECT count(*) = 1 FROM public.done WHERE note = 'slow' AND n = 4));
wait_empty('slow', 'and deleted by whoever got it after that');
is(done('slow'), '3 1 2 4', 'done once');
like(log_of($node, $log), qr/cannot renew visibility timeouts: AccessDenied.*\n.*HINT:  Allow .* sqs:ChangeMessageVisibility on/, 'the log says why, and what to do');
is(scalar(() = log_of($node, $log) =~ /cannot renew/g), 1, 'once');
$sqs->clear;

$dbh->do(q(SELECT taskoutbox.alter_queue('slow', max_run_time => '500 ms', retry_base => '10 ms')));
put('slow', '{"n": 5, "sleep": 60}', 'slow');
ok(poll(sub { (dead('slow'))[0] }, 30), 'max_run_time ends it');

# Terminated in the middle
$dbh->do(q(SELECT taskoutbox.alter_queue('slow', max_run_time => '1 min')));
put('slow', '{"n": 6, "sleep": 1}', 'slow');
wait_for('a controller runs', q(SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer' AND state = 'active' AND wait_event = 'PgSleep'));
value($dbh, q(SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer' AND state = 'active' AND wait_event = 'PgSleep'));
wait_empty('slow', 'its worker is terminated: it comes again after its visibility timeout');
is(value($dbh, q(SELECT string_agg(receive_count::text, ' ') FROM public.done WHERE note = 'slow' AND n = 6)), '2', 'and is done once');

#
# SQS does not do what we want
#
sqs_queue($dbh, $sqs, 'denied', retry_cap => '50 ms', visibility_timeout => '5 s');
controller('denied', 'denied');
for my $case ([ ReceiveMessage => 'ReceiveMessage' ], [ DeleteMessageBatch => 'DeleteMessage' ])
{
	my ($op, $action) = @$case;
	$log = -s $node->logfile;
	$sqs->plant(op => $op, queue => 'denied.fifo', do => 'error', code => 'AccessDeniedException', status => 400);
	# for the poll that is out
	put('denied', '{"n": 1}', 'denied');
	status_is('denied', qr/AccessDenied: SQS refuses $op.*Allow .* sqs:$action on/, "$op is denied: the view says so, and what to do");
	ok(poll(sub { $sqs->hits > 3 }), 'it is tried again');
	is(scalar(() = log_of($node, $log) =~ /consumer gets nothing from SQS/g), 1, 'the log says it once');
	$sqs->clear;
	put('denied', '{"n": 2}', 'denied');
	status_is('denied', undef, 'until it is allowed');
	wait_empty('denied', 'and all is done');
	is(scalar(() = log_of($node, $log) =~ /gets messages from SQS again/g), 1, 'the log says that, too');
}
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note = 'denied')), 4, 'each once');

for my $case (
	[ 'throttled', do => 'error', code => 'RequestThrottled', status => 403, times => 3 ],
	[ 'an error of the service', do => 'error', code => 'InternalFailure', status => 500, times => 3 ],
	[ 'credentials that expired', do => 'error', code => 'ExpiredTokenException', status => 403, times => 1 ],
	[ 'a connection that is closed', do => 'drop', times => 3 ],
	[ 'garbage', do => 'answer', kind => 'garbage', when => 'before', times => 2 ],
	[ 'HTML of a gateway', do => 'answer', kind => 'html', status => 502, when => 'before', times => 3 ])
{
	my ($what, %fault) = @$case;
	for my $op ('ReceiveMessage', 'DeleteMessageBatch')
	{
		$sqs->plant(op => $op, queue => 'denied.fifo', %fault);
		put('denied', '{"n": 3}', 'denied', 'g');
		put('denied', '{"n": 4}', 'denied', 'g');
		wait_empty('denied', "$op: $what");
		$sqs->clear;
	}
}
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note = 'denied')), 28, 'all done, once');
is(scalar(dead('denied')), 0, 'none dead');

# The first answer is lost, and asked for again.
sqs_queue($dbh, $sqs, 'lost', visibility_timeout => '1 hour');
$sqs->plant(op => 'ReceiveMessage', queue => 'lost.fifo', do => 'drop', how => 'reset', when => 'after', times => 1);
put('lost', '{"n": 1}', 'lost');
controller('lost', 'lost');
wait_empty('lost', 'a lost answer comes again under its attempt id, and not after an hour');
is(value($dbh, q(SELECT receive_count FROM public.done WHERE note = 'lost')), 1, 'which is no other receive');

# The first answer was changed on the way.
sqs_queue($dbh, $sqs, 'md5', visibility_timeout => '1 s');
$sqs->plant(op => 'ReceiveMessage', queue => 'md5.fifo', do => 'md5', entries => [0], times => 1);
put('md5', '{"n": 1}', 'md5');
controller('md5', 'md5');
wait_empty('md5', 'a body with another MD5');
is(value($dbh, q(SELECT receive_count FROM public.done WHERE note = 'md5')), 2, 'is not done, and comes again');
$sqs->clear;

# A clone of the server: no worker receives until it is told so.
my @pids = map { $_->{pid} } rows($dbh, q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer'));
$node->append_conf('postgresql.conf', 'taskoutbox.publish = off');
$node->reload;
status_is('lost', qr/taskoutbox.publish is off/, 'taskoutbox.publish = off: the view says so');
wait_for('no worker of a queue in SQS is there', q(SELECT max(workers) = 0 FROM taskoutbox.controller_status WHERE queue = 'lost'));
# A connection is open until the end of its process, and SQS could answer its last poll.
ok(poll(sub { !kill(0, @pids) }), 'nor a process that was one');
$sqs->call('SendMessage', QueueUrl => $sqs->url('lost.fifo'), MessageBody => '{"n": 2}', MessageGroupId => 'p', MessageDeduplicationId => 'clone',
	MessageAttributes => { task_type => { DataType => 'String', StringValue => 'lost' }, task_uid => { DataType => 'String', StringValue => ('0' x 36) . ':2:2' } });
is($sqs->queue('lost.fifo')->{visible}, 1, 'nothing is received');
$node->append_conf('postgresql.conf', 'taskoutbox.publish = on');
$node->reload;
wait_for('on again: it is', q(SELECT count(*) = 1 FROM public.done WHERE note = 'lost' AND n = 2));

#
# Roles
#
$dbh->do(q(SET SESSION AUTHORIZATION other; CREATE FUNCTION other.f(p jsonb) RETURNS void LANGUAGE sql AS ''; RESET SESSION AUTHORIZATION));
is(state_of($dbh, q(SELECT taskoutbox.register_controller('f', 'other.f(jsonb)', queue => 'plain'))), 'TO019', 'a queue in SQS is for one role');
$dbh->do(q(SELECT taskoutbox.create_queue('two', backend => 'embedded')));
controller('a', 'two');
controller('b', 'two', role => 'other');
$url = $sqs->create_queue('two.fifo');
$dbh->do(q(SELECT taskoutbox.alter_queue('two', backend => 'sqs', url => $1, require_dlq => false)), undef, $url);
status_is('two', qr/several roles/, 'one that had two before has no workers, and says so');
put('a', '{"n": 1}', 'two');
$dbh->do(q(SELECT taskoutbox.unregister_controller('b', 'two')));
wait_empty('two', 'until one of them is gone');

# A queue that moves, there and back, while its worker waits
$dbh->do(q(SELECT taskoutbox.create_queue('moves', backend => 'embedded')));
controller('moves', 'moves');
$url = $sqs->create_queue('moves.fifo');
for ([ 1, 'embedded' ], [ 2, 'sqs', $url ], [ 3, 'embedded' ])
{
	my ($n, $backend, @url) = @$_;
	my $sql = 'SELECT taskoutbox.alter_queue(\'moves\', backend => $1, require_dlq => false' . (@url ? ', url => $2)' : ')');
	value($dbh, $sql, $backend, @url);
	put('moves', qq({"n": $n}), 'moves');
	$start = mono();
	wait_for("it moves to $backend", q(SELECT count(*) = 1 FROM public.done WHERE note = 'moves' AND n = $1), $n);
	cmp_ok(mono() - $start, '<', 20, 'and its workers with it, at once');
	wait_empty('moves', 'and all is done');
}

# What a controller can see of credentials: nothing.
$node->append_conf('postgresql.conf', "taskoutbox.aws_credentials_file = '/nowhere/secret'\n");
$node->reload;
$sqs->call('SendMessage', QueueUrl => $sqs->url('plain.fifo'), MessageBody => '{}', MessageGroupId => 'p', MessageDeduplicationId => 'ends-the-poll');
status_is('plain', qr/aws_credentials_file: No such file/, 'credentials that are not there: the view says so');
$node->append_conf('postgresql.conf', "taskoutbox.aws_credentials_file = ''\n");
$node->reload;
status_is('plain', undef, 'until they are');
sqs_queue($dbh, $sqs, 'spy');
controller('spy', 'spy', body => q(INSERT INTO public.done (note, message) SELECT 'seen', to_jsonb(s) FROM pg_settings s WHERE concat(s.name, s.setting, s.reset_val) ~ 'secret|taskoutbox.aws_cred';
	BEGIN PERFORM current_setting('taskoutbox.aws_credentials_file'); INSERT INTO public.done (note) VALUES ('seen'); EXCEPTION WHEN insufficient_privilege THEN NULL; END;
	BEGIN SET taskoutbox.aws_endpoint_url = 'http://127.0.0.1:1'; INSERT INTO public.done (note) VALUES ('seen'); EXCEPTION WHEN cant_change_runtime_param THEN NULL; END;));
put('spy', '{"n": 1}', 'spy');
wait_empty('spy', 'a controller that looks for credentials');
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note = 'seen')), 0, 'sees none, and sends nothing elsewhere');

#
# Durable before it is deleted
#
$dbh->do('ALTER ROLE app SET synchronous_commit = off');
$dbh->do(q(ALTER SYSTEM SET wal_writer_delay = '10s'));
$node->reload;
sqs_queue($dbh, $sqs, 'lazy', max_run_time => '1 min');
controller('lazy', 'lazy');
put('lazy', '{"n": 1}', 'lazy');
wait_empty('lazy', 'synchronous_commit = off');
$node->stop('immediate');
{
	my %aws = aws_environment($sqs);
	local @ENV{ keys %aws } = values %aws;
	$node->start;
}
$dbh = session($node);
wait_for_relay($node);
is(done('lazy'), '1', 'what was deleted in SQS is on disk');
$dbh->do('ALTER ROLE app RESET synchronous_commit');

#
# It yields
#
$dbh->do('CREATE DATABASE gone');
my $gone = session($node, dbname => 'gone');
$gone->do('CREATE EXTENSION taskoutbox');
sqs_queue($gone, $sqs, 'gone');
$gone->do(q(CREATE FUNCTION f(p jsonb) RETURNS void LANGUAGE sql AS ''));
$gone->do(q(SELECT taskoutbox.register_controller('f', 'f(jsonb)', queue => 'gone')));
ok(poll(sub { requests('gone', 'ReceiveMessage') }), 'a worker polls in another database');
$gone->disconnect;
$start = mono();
$dbh->do('ALTER DATABASE gone RENAME TO going');
$dbh->do('DROP DATABASE going');
cmp_ok(mono() - $start, '<', 4, 'RENAME and DROP DATABASE do not wait for the poll');
$dbh->disconnect;
$start = mono();
$node->stop('fast');
cmp_ok(mono() - $start, '<', 5, 'nor does a fast shutdown');
unlike(slurp_file($node->logfile), qr/PANIC|signal 6|signal 11|TRAP:/, 'nothing crashed');

done_testing();
