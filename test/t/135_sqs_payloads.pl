# What real programs send: the examples of GitHub's webhooks, in many groups, through
# fauxqs and through the fake, which checks every signature, to AWS's own client.  All
# bodies come, equal to payload::text, once, each group in order.
#
# TASKOUTBOX_MESSAGES: how many to each server; a hundred in each group, fewer if there are few.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FakeSqs;
use Fauxqs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SqsTest;
use TaskoutboxTest;
use Test::More;

if (my $why = FakeSqs->missing || Fauxqs->missing)
{
	diag("NO TEST WITH REAL PAYLOADS RUNS: $why");
	plan skip_all => $why;
}

my $messages = $ENV{TASKOUTBOX_MESSAGES} || 1000;
my $groups = $messages < 5000 ? 50 : int($messages / 100);
my $most = 1024 * 1024;
note "TASKOUTBOX_MESSAGES=$messages";

# A session token makes one more header that is signed.
my %token = (AWS_SESSION_TOKEN => 'session/token+with==signs');
my ($fake, $node) = new_sqs_node('sqs_payloads', conf => "taskoutbox.max_message_bytes = '1MB'\n");
my $dbh = session($node);
my $producer = session($node);

$dbh->do($_) for (
	'CREATE TABLE example (n integer PRIMARY KEY, payload jsonb)',
	'CREATE SEQUENCE example_n',
	'CREATE TABLE sent (queue text, id bigint, example integer, group_id text, PRIMARY KEY (queue, id))',
	'CREATE TABLE got (queue text, line text, n bigserial)',
	q{
CREATE PROCEDURE produce(queue text, messages integer, groups integer, examples integer) LANGUAGE plpgsql AS $$
DECLARE
	others integer := (SELECT count(*) FROM example) - examples;
BEGIN
	FOR done IN 0 .. messages - 1 BY 500 LOOP
		INSERT INTO sent
		SELECT produce.queue, (taskoutbox.enqueue('webhook', e.payload, queue => produce.queue, group_id => g.name)).id, e.n, g.name
		FROM generate_series(done, least(done + 500, messages) - 1) n
			JOIN example e ON e.n = CASE WHEN n.n < others THEN 1 + examples + n.n ELSE 1 + n.n % examples END,
			LATERAL (SELECT 'repository/' || n.n % groups AS name) g
		ORDER BY n.n;
		COMMIT;
	END LOOP;
END $$});

# Those of GitHub, again and again.  Once each, before them: what is there to be escaped,
# characters of all sizes, the largest bodies that are allowed, one of them of
# characters that JSON doubles.
$dbh->do(
	q{INSERT INTO example SELECT nextval('example_n'), x FROM jsonb_array_elements($1::jsonb) e, jsonb_array_elements(e -> 'examples') x
	WHERE length(x::text) < $2::int}, undef, slurp_file(Fauxqs::payloads()), $most);
my $real = value($dbh, 'SELECT count(*) FROM example');
cmp_ok($real, '>', 300, "$real payloads of GitHub");
$dbh->do(q{INSERT INTO example SELECT nextval('example_n'), to_jsonb(repeat(x, 500)) FROM unnest(ARRAY[
	chr(233), chr(8364), chr(128512), chr(1114109), chr(65533), chr(9) || chr(10) || chr(13), '"\\/', E'\\x7f', '&<>''']) x});
{
	# What task_type and the other attributes need besides the body.
	my $room = $most - 146 - length('webhook') - 2;
	$dbh->do(q{INSERT INTO example VALUES (nextval('example_n'), to_jsonb(repeat('x', $1::int))),
		(nextval('example_n'), to_jsonb(repeat('\\', $1::int / 2))), (nextval('example_n'), to_jsonb(repeat(chr(233), $1::int / 2)))}, undef, $room);
}

sub run
{
	my ($queue, $server) = @_;
	my $url = Fauxqs::create_queue($server, "$queue.fifo", MaximumMessageSize => $most, VisibilityTimeout => 600);
	my $start = mono();

	value(
		$dbh,
		q{SELECT taskoutbox.create_queue($1, 'sqs', url => $2, endpoint => $3, allow_http => true, require_dlq => false)},
		$queue, $url, $server->endpoint);
	ok(poll(sub { metrics($dbh, $queue)->{sqs_looked_at} }), "$queue: the queue is known");

	my $call = start_query($producer, 'CALL produce($1, $2::int, $3::int, $4::int)', $queue, $messages, $groups, $real);
	my $client = Fauxqs::start_client($server, 'consume', "$queue.fifo", { messages => $messages, loops => 4, idle => 60 });
	$dbh->do("COPY got (queue, line) FROM STDIN");
	while (my $line = <$client>)
	{
		utf8::decode($line);
		$line =~ s/\\/\\\\/g;
		$dbh->pg_putcopydata("$queue\t$line");
	}
	$dbh->pg_putcopyend;
	ok(close($client), "$queue: the client is content");
	wait_query($call);
	ok(outbox_is_empty($dbh, $queue), "$queue: all are published");
	my $seconds = mono() - $start;
	is(scalar(my @more = Fauxqs::consume($server, "$queue.fifo", idle => 2)), 0, "$queue: nothing is left in SQS");

	is(value($dbh, q{SELECT count(*) FROM sent WHERE queue = $1}, $queue), $messages, "$queue: enqueued");
	is(value($dbh, q{SELECT count(*) FROM got WHERE queue = $1}, $queue), $messages, "$queue: received");
	is(value($dbh, q{SELECT count(DISTINCT group_id) FROM sent WHERE queue = $1}, $queue), $groups, "$queue: in so many groups");

	# Figures of what is wrong, of each kind.
	$dbh->do('DROP TABLE IF EXISTS arrived');
	$dbh->do(q{CREATE TABLE arrived AS
		SELECT n, split_part(j #>> '{attributes,task_uid}', ':', 2)::bigint AS id, j ->> 'group' AS group_id, md5(j ->> 'body') AS body,
			(j ->> 'receive_count')::int AS receive_count, j #>> '{attributes,task_type}' AS task_type
		FROM (SELECT n, line::jsonb AS j FROM got WHERE queue = $1) g}, undef, $queue);
	is(value($dbh, q{SELECT count(*) FROM sent s LEFT JOIN arrived USING (id) WHERE queue = $1 AND n IS NULL}, $queue), 0, "$queue: none lost");
	is(value($dbh, q{SELECT count(*) - count(DISTINCT id) FROM arrived}), 0, "$queue: none twice");
	is(value($dbh, q{SELECT count(*) FROM arrived WHERE receive_count <> 1}), 0, "$queue: none again");
	is(value($dbh, q{SELECT count(*) FROM arrived a JOIN sent s ON s.queue = $1 AND s.id = a.id JOIN (SELECT n, md5(payload::text) AS body FROM example) e ON e.n = s.example
		WHERE a.body = e.body AND a.group_id = s.group_id AND a.task_type = 'webhook'}, $queue), $messages, "$queue: unchanged");
	is(value($dbh, q{SELECT count(*) FROM (SELECT id < lag(id) OVER (PARTITION BY group_id ORDER BY n) AS is_late FROM arrived) a WHERE is_late}),
		0, "$queue: in order, each group");
	is(metrics($dbh, $queue)->{dead}, 0, "$queue: no dead letter");
	is(metrics($dbh, $queue)->{problem}, undef, "$queue: no problem");
	note sprintf('%s: %d messages of %d bytes each in %.1f s, %d a second', $queue, $messages,
		value($dbh, q{SELECT avg(octet_length(payload::text)) FROM sent JOIN example ON n = example WHERE queue = $1}, $queue),
		$seconds, $messages / $seconds);
	$dbh->do('TRUNCATE got');
	return;
}

# What the fake can say besides: every signature was checked by botocore.
sub checked
{
	my ($queue) = @_;
	my @requests = $fake->requests(queue => "$queue.fifo", op => 'SendMessageBatch');

	is(scalar(grep { defined $_->{code} || !$_->{access_key} } @requests), 0, "$queue: every signature was right");
	is(scalar($fake->duplicates("$queue.fifo")), 0, "$queue: nothing was sent twice");
	note scalar(@requests) . ' requests';
	return;
}

run('fauxqs', Fauxqs->start);
run('plain', $fake);
checked('plain');

# The same with a session token: other credentials, so the server starts anew.
$_->disconnect for $dbh, $producer;
$fake->control('credentials', key => $fake->access_key, secret => $fake->secret_key, token => $token{AWS_SESSION_TOKEN});
{
	local %ENV = (%ENV, $fake->environment, %token);
	delete $ENV{AWS_ENDPOINT_URL_SQS};
	$node->restart;
}
wait_for_relay($node);
$dbh = session($node);
$producer = session($node);
{
	local %ENV = (%ENV, %token);
	run('token', $fake);
}
checked('token');

done_testing();
