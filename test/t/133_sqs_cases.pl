# What others got wrong in publishing to SQS, each as it was reported.  Cases C06 to
# C09, C11, C22, C24, C71, C72, C79, C80, C95, C109.  The rest of what is about SQS is in
# 120, 125, 130 and 132.
#
# TASKOUTBOX_ROWS: tasks while a twentieth of the requests hangs (default 2000).

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

my $rows = $ENV{TASKOUTBOX_ROWS} || 2000;
note "TASKOUTBOX_ROWS=$rows";
my ($sqs, $node) = new_sqs_node('sqs_cases', conf => "taskoutbox.request_timeout = '500ms'\nlog_error_verbosity = terse\n");
my $dbh = session($node);

sub put
{
	my ($queue, $payload, $group) = @_;
	return enqueue($dbh, $group, $payload, $queue);
}

# Many at once: payload is the number, of so many groups.
sub put_many
{
	my ($queue, $many, $groups) = @_;
	return $dbh->do(q{SELECT count(taskoutbox.enqueue('test', to_jsonb(n), queue => $1, group_id => 'g' || n % $3::int)) FROM generate_series(1, $2::int) n},
		undef, $queue, $many, $groups);
}

sub bodies
{
	my ($queue) = @_;
	return map { $_->{body} } $sqs->accepted("$queue.fifo", 'body');
}

# All of 1 to $many, once, each group in order.
sub all_came
{
	my ($what, $queue, $many, $groups) = @_;
	my @came = bodies($queue);
	my (%last, @late);

	is(join(' ', sort { $a <=> $b } @came), join(' ', 1 .. $many), "$what: all came, once");
	for my $m (@came)
	{
		push @late, $m if $m < ($last{ $m % $groups } || 0);
		$last{ $m % $groups } = $m;
	}
	is("@late", '', "$what: each group in order");
	return;
}

# C06: requests that hang lose nothing, and hold up nothing for good
{
	sqs_queue($dbh, $sqs, 'hanging', max_connections => 8);
	my $fault = $sqs->plant(op => 'SendMessageBatch', queue => 'hanging.fifo', do => 'delay', seconds => 2, p => .05);
	put_many('hanging', $rows, $rows / 10);
	ok(outbox_is_empty($dbh, 'hanging', 120), 'C06: nothing is left');
	note $sqs->hits($fault) . ' requests hung';
	cmp_ok($sqs->hits($fault), '>', 0, 'C06: some did hang');
	is(metrics($dbh, 'hanging')->{dead}, 0, 'C06: none is dead');
	is(value($dbh, 'SELECT count(*) FROM taskoutbox.in_flight'), 0, 'C06: none is in flight');
	$sqs->clear;
	all_came('C06', 'hanging', $rows, $rows / 10);
}

# C07: eight requests at a time, each of them for its own time
{
	sqs_queue($dbh, $sqs, 'parallel', max_connections => 8);
	$sqs->plant(op => 'SendMessageBatch', queue => 'parallel.fifo', do => 'delay', seconds => $_, p => .3) for .005, .02, .06;
	put_many('parallel', 1000, 10);
	ok(outbox_is_empty($dbh, 'parallel', 120), 'C07: all published');
	$sqs->clear;
	all_came('C07', 'parallel', 1000, 10);
}

# C08, C09: of ten groups, one fails and one is not mentioned
{
	sqs_queue($dbh, $sqs, 'partial');
	$dbh->do(q{SELECT taskoutbox.pause_queue('partial')});
	put_many('partial', 30, 10);
	my @faults = (
		$sqs->plant(op => 'SendMessageBatch', queue => 'partial.fifo', do => 'entry', group => 'g5', code => 'InternalError', sender_fault => \0),
		$sqs->plant(op => 'SendMessageBatch', queue => 'partial.fifo', do => 'lose', group => 'g6', accept => \0));
	$dbh->do(q{SELECT taskoutbox.resume_queue('partial')});
	ok(poll(sub { scalar(bodies('partial')) == 24 }), 'C08: what was accepted is done');
	ok(poll(sub { value($dbh, q{SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'partial'}) == 6 }), 'C08: and gone');
	ok(poll(sub { $sqs->hits($_) > 5 }), 'C08: the others are tried again') for @faults;
	is(join(' ', grep { $_ % 10 == 5 || $_ % 10 == 6 } bodies('partial')), '', 'C08, C09: nothing of their groups passes them');
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'partial'), 'C08: until they are accepted');
	all_came('C08', 'partial', 30, 10);
	is(scalar($sqs->duplicates('partial.fifo')), 0, 'C08: what was accepted was not sent again');
}

# What SQS may have is settled even while its queue is paused, so that it can be told to
# publish elsewhere; also by the next relay
for my $who ('relay', 'next relay')
{
	(my $queue = "paused by $who") =~ s/ /_/g;
	sqs_queue($dbh, $sqs, $queue);
	$sqs->create_queue_with_dead_letters("$queue-new.fifo", 3);
	my $fault = $sqs->plant(op => 'SendMessageBatch', queue => "$queue.fifo", do => 'lose', entries => [ 0 .. 9 ], accept => \1);
	put_many($queue, 20, 5);
	ok(poll(sub { metrics($dbh, $queue)->{retried} >= 5 }), "$who: some may have arrived");
	$dbh->do('SELECT taskoutbox.pause_queue($1)', undef, $queue);
	is(state_of($dbh, q{SELECT taskoutbox.alter_queue($1, endpoint => 'http://127.0.0.1:1')}, $queue), 'TO018', "$who: it cannot be moved while that is open");
	is(state_of($dbh, q{SELECT taskoutbox.alter_queue($1, region => 'us-east-1')}, $queue), 'TO018', "$who: nor be in another region");
	if ($who eq 'next relay')
	{
		my $old = relay_pid($dbh);
		value($dbh, 'SELECT pg_terminate_backend($1)', $old);
		ok(poll(sub { my $new = relay_pid($dbh); $new && $new != $old }), "$who: is there");
		my $hits = $sqs->hits($fault);
		ok(poll(sub { $sqs->hits($fault) > $hits }), "$who: tries");
	}
	$sqs->clear;
	ok(poll(sub { metrics($dbh, $queue)->{in_flight} == 0 }, 20), "$who: paused, and yet that is settled");
	is(join(' ', sort { $a <=> $b } bodies($queue)), '1 2 3 4 5', "$who: nothing else is sent");
	is(metrics($dbh, $queue)->{waiting}, 15, "$who: which waits");
	$dbh->do('SELECT taskoutbox.alter_queue($1, url => $2)', undef, $queue, $sqs->url("$queue-new.fifo"));
	$dbh->do('SELECT taskoutbox.resume_queue($1)', undef, $queue);
	ok(outbox_is_empty($dbh, $queue), "$who: until it is resumed");
	is(join(' ', sort { $a <=> $b } bodies("$queue-new")), join(' ', 6 .. 20), "$who: and goes to where it was told");
}

# C11: a task that SQS always refuses ends; it takes no CPU, nor others' time
{
	sqs_queue($dbh, $sqs, 'poisoned');
	$sqs->plant(op => 'SendMessageBatch', queue => 'poisoned.fifo', do => 'error', body => 'poison', code => 'InvalidParameterValue', status => 400);
	my $id = put('poisoned', '"poison"', 'g');
	put('poisoned', $_, 'g') for 1 .. 3;
	ok(outbox_is_empty($dbh, 'poisoned'), 'C11: it ends');
	is(join(' ', map { $_->{id} } rows($dbh, q{SELECT id FROM taskoutbox.dead_letter WHERE queue = 'poisoned'})), $id, 'C11: as a dead letter');
	is(join(' ', bodies('poisoned')), '1 2 3', 'C11: others of its group go on');

	# And while all are refused: the queue waits, and does not run in circles.
	sqs_queue($dbh, $sqs, 'refused', retry_base => '200 ms', retry_cap => '1 s');
	my $fault = $sqs->plant(op => 'SendMessageBatch', queue => 'refused.fifo', do => 'error', code => 'InvalidParameterValue', status => 400);
	put_many('refused', 200, 100);
	ok(problem_is($dbh, 'refused', qr/^InvalidParameterValue/), 'C11: all are refused');
	my $pid = relay_pid($dbh);
	my $cpu = sub { my @stat = split / /, slurp_file("/proc/$pid/stat"); return $stat[13] + $stat[14]; };
	my ($before, $hits) = ($cpu->(), $sqs->hits($fault));
	ok(poll(sub { $sqs->hits($fault) > $hits + 3 }), 'C11: some are tried');
	cmp_ok($cpu->() - $before, '<=', 20, 'C11: in less than 0.2 s of CPU');
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'refused'), 'C11: goes on');
}

# C22: SQS took it, nobody was told, and SQS forgets that it did
{
	sqs_queue($dbh, $sqs, 'forgotten');
	my $fault = $sqs->plant(op => 'SendMessageBatch', queue => 'forgotten.fifo', do => 'delay', when => 'after');
	$node->append_conf('postgresql.conf', "taskoutbox.request_timeout = '60s'");
	$node->reload;
	put('forgotten', 1, 'g');
	put('forgotten', 2, 'g');
	ok(poll(sub { scalar(bodies('forgotten')) == 1 }), 'C22: accepted');
	$sqs->clock(advance => 600);
	crash($node);
	$dbh = session($node);
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'forgotten'), 'C22: published by the next relay');
	my @came = $sqs->accepted('forgotten.fifo');
	is(join(' ', map { $_->{body} } @came), '1 1 2', 'C22: twice, and before what follows');
	is($came[0]{attributes}{task_uid}{StringValue}, $came[1]{attributes}{task_uid}{StringValue}, 'C22: with one task_uid, by which a consumer can tell');
	is($came[0]{dedup}, $came[1]{dedup}, 'C22: and one deduplication id');
}

# C24, C72: ids and characters; C71: what is counted is bytes
{
	sqs_queue($dbh, $sqs, 'odd', attributes => { MaximumMessageSize => 262144 });
	my $all = join('', map { chr } grep { chr =~ /[A-Za-z0-9!"#\$%&'()*+,\-.\/:;<=>?@\[\\\]^_`{|}~]/ } 33 .. 126);
	my $long = substr($all . 'x' x 128, 0, 128);
	my $sql = q{SELECT taskoutbox.enqueue('test', $1::jsonb, queue => 'odd', group_id => $2, deduplication_id => $3)};
	is(length($all), 94, 'C24: all characters that SQS takes in an id');
	is(state_of($dbh, $sql, '"ids"', $long, $long), '00000', 'C24: 128 of them');
	is(state_of($dbh, $sql, '1', "${long}x", undef), 'TO002', 'C24: 129 are refused at enqueue');
	is(state_of($dbh, $sql, '1', 'a b', undef), 'TO003', 'C24: so is a space');
	is(state_of($dbh, $sql, '1', chr(233), undef), 'TO003', 'C24: and another alphabet');
	is(state_of($dbh, $sql, '1', '', undef), 'TO001', 'C24: and nothing at all');
	is(state_of($dbh, $sql, qq("a\x{FFFE}"), 'g', undef), 'TO003', 'C72: U+FFFE is refused at enqueue');
	is(state_of($dbh, $sql, qq("a\x{FFFF}"), 'g', undef), 'TO003', 'C72: and U+FFFF');
	is(state_of($dbh, $sql, qq("\x{1F600}\\t\\u0007\\u001f\\"\\\\\x{E000}\x{FFFD}"), 'g', undef), '00000', 'C72: all others are taken');

	my $body = sub { return q{to_jsonb(repeat(chr(233), } . int((262144 - 146 - length('test') - 2 - length('traceparentString00-1-2-3')) / 2 + $_[0]) . '))' };
	my $with = q{SELECT taskoutbox.enqueue('test', %s, queue => 'odd', headers => '{"traceparent": "00-1-2-3"}')};
	is(state_of($dbh, sprintf($with, $body->(0))), '00000', 'C71: as many bytes as are allowed, with headers');
	is(state_of($dbh, sprintf($with, $body->(1))), 'TO004', 'C71: one more character is refused at enqueue');
	ok(outbox_is_empty($dbh, 'odd'), 'C24, C71, C72: SQS takes all that enqueue does');
	is(metrics($dbh, 'odd')->{dead}, 0, 'C24, C71, C72: without a dead letter');
	my @came = $sqs->accepted('odd.fifo');
	my ($ids) = grep { $_->{body} eq '"ids"' } @came;
	is("$ids->{group} $ids->{dedup}", "$long $long", 'C24: unchanged');
	my ($characters) = grep { $_->{group} eq 'g' } @came;
	is($characters->{body}, qq("\x{1F600}\\t\\u0007\\u001f\\"\\\\\x{E000}\x{FFFD}"), 'C72: unchanged');
}

# C79: in two days
{
	sqs_queue($dbh, $sqs, 'delayed');
	$dbh->do(q{SELECT taskoutbox.enqueue('test', '"later"', queue => 'delayed', group_id => 'g', deliver_at => now() + '2 days')});
	put('delayed', '"now"', 'g');
	ok(poll(sub { scalar(bodies('delayed')) == 1 }), 'C79: what is due is published');
	is(join(' ', bodies('delayed')), '"now"', 'C79: and what is not is kept here');
	is(metrics($dbh, 'delayed')->{delayed}, 1, 'C79: for as long as it takes');
}

# C80: SQS says when to come again; else pauses are by chance, and not shorter and shorter
{
	sqs_queue($dbh, $sqs, 'throttled', retry_base => '100 ms', retry_cap => '400 ms');
	ok(poll(sub { metrics($dbh, 'throttled')->{sqs_looked_at} }), 'C80: worked before');
	my $at = sub { map { $_->{at} } $sqs->requests(op => 'SendMessageBatch', queue => 'throttled.fifo') };
	for my $answer ([ 'RequestThrottled', 403 ], [ 'ServiceUnavailable', 503 ])
	{
		my $before = () = $at->();
		$sqs->plant(op => 'SendMessageBatch', queue => 'throttled.fifo', do => 'error', code => $answer->[0], status => $answer->[1], retry_after => 2, times => 1);
		put('throttled', 1, 'g');
		ok(outbox_is_empty($dbh, 'throttled'), "C80: $answer->[0]");
		my @at = $at->();
		is(@at - $before, 2, "C80: $answer->[0]: tried again once");
		cmp_ok($at[-1] - $at[-2], '>=', 1.95, "C80: $answer->[0]: not before Retry-After");
	}
	my $first = () = $at->();
	$sqs->plant(op => 'SendMessageBatch', queue => 'throttled.fifo', do => 'error', code => 'RequestThrottled', status => 403);
	put_many('throttled', 50, 50);
	my @at;
	ok(poll(sub { @at = $at->(); splice(@at, 0, $first); @at >= 12 && $at[-1] - $at[0] > 2 }), 'C80: throttled without a word when to come');
	# Requests that were on their way together fail together.
	my @pauses = sort { $a <=> $b } grep { $_ > .001 } map { $at[$_] - $at[ $_ - 1 ] } 1 .. $#at;
	note @at . ' requests, pauses: ' . join(' ', map { sprintf '%.3f', $_ } @pauses);
	cmp_ok($pauses[-1] - $pauses[0], '>', .05, 'C80: pauses differ');
	cmp_ok(@at / ($at[-1] - $at[0]), '<', 24, 'C80: and are there');
	$sqs->clear;
	ok(outbox_is_empty($dbh, 'throttled'), 'C80: goes on');
	is(metrics($dbh, 'throttled')->{dead}, 0, 'C80: none is dead');
}

# C95: no table of ours needs anybody's maintenance to take rows: no relay, nobody that
# purges, an id far from the last one
{
	sqs_queue($dbh, $sqs, 'unattended');
	is(value($dbh, q{SELECT count(*) FROM pg_class c JOIN pg_namespace s ON s.oid = relnamespace WHERE nspname = 'taskoutbox' AND (relkind = 'p' OR relispartition)}),
		0, 'C95: there are no partitions that could be missing');
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\nautovacuum = off");
	$dbh->disconnect;
	$node->restart;
	$dbh = session($node);
	$dbh->do(q{SELECT setval('taskoutbox.task_outbox_id_seq', 5000000000000)});
	put_many('unattended', 100, 10);
	is(value($dbh, q{SELECT state || ': ' || hint FROM taskoutbox.relay_status}) =~ /^not preloaded: Add taskoutbox/, 1, 'C95: the figures say that nobody publishes');
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'taskoutbox'");
	$dbh->disconnect;
	{
		local %ENV = (%ENV, $sqs->environment);
		$node->restart;
	}
	wait_for_relay($node);
	$dbh = session($node);
	ok(outbox_is_empty($dbh, 'unattended'), 'C95: rows were accepted, and all are published afterwards');
	all_came('C95', 'unattended', 100, 10);
}

# C109: no secret can be seen
{
	is(value($dbh, q{SELECT count(*) FROM pg_settings WHERE name LIKE 'taskoutbox.%' AND name ~ 'secret|token|password|access_key'}), 0, 'C109: there is no setting for one');
	is(state_of($dbh, 'SHOW taskoutbox.aws_secret_access_key'), '42704', 'C109: of no name');
	$dbh->do('CREATE ROLE somebody');
	$dbh->do('SET ROLE somebody');
	is(state_of($dbh, 'SHOW taskoutbox.aws_credentials_file'), '42501', 'C109: where they are, only a superuser sees');
	$dbh->do('RESET ROLE');

	my $offset = -s $node->logfile;
	$node->append_conf('postgresql.conf', "log_min_messages = debug5\nlog_error_verbosity = verbose\nlog_statement = none");
	$node->reload;
	ok(poll(sub { log_of($node, $offset) =~ /DEBUG/ }), 'C109: everything is logged');
	$sqs->plant(op => 'SendMessageBatch', queue => 'odd.fifo', do => 'error', code => $_, status => 403, times => 2)
	  for 'InvalidSignatureException', 'AccessDenied', 'ExpiredTokenException';
	put('odd', '"confidential"', 'g');
	ok(outbox_is_empty($dbh, 'odd'), 'C109: published after some errors');
	$node->append_conf('postgresql.conf', 'log_min_messages = warning');
	$node->reload;
	my $log = log_of($node, $offset);
	my $secret = $sqs->secret_key;
	unlike($log, qr/\Q$secret\E/, 'C109: no secret in the log, with debug5');
	unlike($log, qr/AWS4-HMAC|Credential=/, 'C109: nor a signature');
	unlike($log, qr/relay (?!.*STATEMENT).*confidential/, 'C109: nor a payload');
	is(value($dbh, q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()}, $secret), 0, 'C109: nor in pg_stat_activity');
}
unlike(log_of($node), qr/PANIC|relay (?:ERROR|FATAL):  (?!terminating)/, 'no error of a relay');

done_testing();
