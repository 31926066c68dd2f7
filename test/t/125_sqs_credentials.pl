# Credentials: every source, in its order; read again when files and tokens change,
# replaced before they expire and at once when SQS says that they have; and no secret
# where it does not belong.  Cases C75, C109.

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
use Time::HiRes qw(usleep);

plan skip_all => FakeSqs::missing() if FakeSqs::missing();

my $dir = PostgreSQL::Test::Utils::tempdir;
my @secrets;

sub write_file
{
	my ($name, $content) = @_;
	open my $file, '>', "$dir/$name" or die "$name: $!";
	print $file $content;
	close $file;
	return "$dir/$name";
}

# Accepts a pair of keys, and returns them as a profile.
sub profile
{
	my ($sqs, $name, $key) = @_;
	my $secret = "secret-of-$key/+=";
	push @secrets, $secret;
	$sqs->control('credentials', key => $key, secret => $secret);
	return "[$name]\naws_access_key_id = $key\naws_secret_access_key=$secret\n";
}

# A server with this in its environment, and a queue "q".
sub server
{
	my ($name, %opt) = @_;
	my ($sqs, $node) = new_sqs_node($name, %opt);
	my $dbh = session($node);
	sqs_queue($dbh, $sqs, 'q');
	return ($sqs, $node, $dbh);
}

sub publishes
{
	my ($dbh, $what) = @_;
	value($dbh, q{SELECT id FROM taskoutbox.enqueue('test', queue => 'q')});
	return ok(outbox_is_empty($dbh, 'q', 30), $what) || diag explain(metrics($dbh, 'q'));
}

# The access key of the last request that SQS carried out.
sub last_key
{
	my ($sqs) = @_;
	return (grep { $_->{done} && defined $_->{access_key} } $sqs->requests)[-1]{access_key};
}

my %region = (AWS_REGION => 'eu-central-1', AWS_EC2_METADATA_DISABLED => 'true', HOME => $dir);
my $logs = '';

#
# None, then the file of our own setting, which comes before the environment
#
{
	my ($sqs, $node, $dbh) = server('file', environment => {%region});
	my $row = problem_is($dbh, 'q', qr/^no AWS credentials found/);
	ok($row, 'without credentials the queue waits');
	like($row->{remedy}, qr/aws_credentials_file/, 'and says what to do');

	my $file = write_file('own', profile($sqs, 'other', 'AKIAOTHER') . "# comment\n\n" . profile($sqs, 'default', 'AKIAOWN'));
	$node->append_conf('postgresql.conf', "taskoutbox.aws_credentials_file = '$file'");
	$node->reload;
	publishes($dbh, 'a file');
	is(last_key($sqs), 'AKIAOWN', 'profile default');
	$node->append_conf('postgresql.conf', "taskoutbox.aws_profile = 'other'");
	$node->reload;
	poll(sub { publishes_with($dbh, $sqs, 'AKIAOTHER') }) or fail('another profile');
	is(last_key($sqs), 'AKIAOTHER', 'another profile');

	# rotated: the old key is refused, and the file read again
	write_file('own', profile($sqs, 'other', 'AKIANEW'));
	$sqs->control('credentials', revoke => ['AKIAOTHER']);
	publishes($dbh, 'C75: rotated keys are read again when the old ones are refused');
	is(last_key($sqs), 'AKIANEW', 'C75: the new key');
	ok(problem_is($dbh, 'q', undef), 'C75: without a problem');

	# wrong ones: the queue waits, rows do not die
	write_file('own', "[other]\naws_access_key_id = AKIANEW\naws_secret_access_key = wrong\n");
	$sqs->control('credentials', revoke => ['AKIANEW']);
	value($dbh, q{SELECT id FROM taskoutbox.enqueue('test', queue => 'q')});
	$row = problem_is($dbh, 'q', qr/^UnrecognizedClient: SQS refuses the credentials/);
	ok($row, 'C75: unknown keys: the queue waits');
	push @secrets, 'wrong-secret';
	$sqs->control('credentials', key => 'AKIANEW', secret => 'right-secret');
	push @secrets, 'right-secret';
	ok(problem_is($dbh, 'q', qr/^(?:InvalidSignature|SignatureDoesNotMatch): SQS refuses/), 'a wrong secret: the queue waits');
	write_file('own', "[other]\naws_access_key_id = AKIANEW\naws_secret_access_key = right-secret\n");
	ok(outbox_is_empty($dbh, 'q'), 'C75: until they are right');
	is(metrics($dbh, 'q')->{dead}, 0, 'C75: no dead letter');

	for my $case (
		[ "$dir/missing", qr/could not read the file of taskoutbox.aws_credentials_file/ ],
		[ write_file('empty', ''), qr/has no profile "other"/ ],
		[ write_file('half', "[other]\naws_access_key_id = x\n"), qr/lacks aws_access_key_id or aws_secret_access_key/ ],
		[ write_file('long', "[other]\naws_access_key_id = " . 'x' x 10_000 . "\n"), qr/too long/ ])
	{
		$node->append_conf('postgresql.conf', "taskoutbox.aws_credentials_file = '$case->[0]'");
		$node->reload;
		usleep(100_000);
		value($dbh, q{SELECT id FROM taskoutbox.enqueue('test', queue => 'q')});
		ok(problem_is($dbh, 'q', $case->[1]), "file: $case->[1]");
	}
	is(value($dbh, q{SELECT count(*) FROM taskoutbox.task_outbox}), 4, 'rows wait');
	$logs .= log_of($node);
}

sub publishes_with
{
	my ($dbh, $sqs, $key) = @_;
	value($dbh, q{SELECT id FROM taskoutbox.enqueue('test', queue => 'q')});
	outbox_is_empty($dbh, 'q', 10);
	return last_key($sqs) eq $key;
}

#
# Environment before shared files; with a session token
#
{
	my ($sqs, $node, $dbh) = server('environment', environment => { %region,
			AWS_ACCESS_KEY_ID => 'ASIAENV', AWS_SECRET_ACCESS_KEY => 'env-secret', AWS_SESSION_TOKEN => 'env-token/+==' });
	push @secrets, 'env-secret', 'env-token';
	$sqs->control('credentials', key => 'ASIAENV', secret => 'env-secret', token => 'env-token/+==');
	publishes($dbh, 'environment with a session token');
	is(last_key($sqs), 'ASIAENV', 'its key');
	$logs .= log_of($node);
}

#
# Shared files: credentials, then config; AWS_PROFILE
#
{
	my $probe = FakeSqs->start;
	mkdir "$dir/.aws";
	write_file('.aws/config', "[default]\nregion = us-east-1\n" . profile($probe, 'profile work', 'AKIACONFIG'));
	my ($sqs, $node, $dbh) = server('shared', environment => { %region, AWS_PROFILE => 'work' });
	$sqs->control('credentials', key => 'AKIACONFIG', secret => $secrets[-1]);
	publishes($dbh, 'shared config');
	is(last_key($sqs), 'AKIACONFIG', 'its key');
	write_file('.aws/credentials', profile($sqs, 'work', 'AKIASHARED'));
	$sqs->control('credentials', revoke => ['AKIACONFIG']);
	publishes($dbh, 'shared credentials');
	is(last_key($sqs), 'AKIASHARED', 'come first');
	unlink "$dir/.aws/config", "$dir/.aws/credentials";
	$logs .= log_of($node);
}

#
# Services: each gives credentials that expire in a few seconds
#
sub refreshes
{
	my ($sqs, $dbh, $what, $op) = @_;

	publishes($dbh, "$what");
	like(last_key($sqs), qr/^ASIAFAKE/, "$what: temporary ones");
	my $before = scalar(my @asked = $sqs->requests(op => $op));
	ok(poll(
			sub {
				value($dbh, q{SELECT id FROM taskoutbox.enqueue('test', queue => 'q')});
				outbox_is_empty($dbh, 'q', 10);
				usleep(100_000);
				return scalar(my @now = $sqs->requests(op => $op)) > $before + 1;
			}), "$what: fetched again");
	is(scalar(grep { defined $_->{code} } $sqs->requests(op => 'SendMessageBatch')), 0, "$what: before they expired");

	# and at once when SQS says so
	$sqs->control('settings', session_seconds => 3600);
	$sqs->control('credentials', revoke => ['all']);
	publishes($dbh, "$what: fetched again when they are refused");
	$sqs->plant(do => 'error', code => 'ExpiredTokenException', status => 403, op => 'SendMessageBatch', times => 1);
	publishes($dbh, "$what: and when they have expired after all");
	is(scalar(rows($dbh, 'SELECT * FROM taskoutbox.dead_letter')), 0, "$what: no dead letter");
	return;
}

my $port;
{
	# The port of the fake has to be known before the server starts.
	my %services = (
		container => sub {
			(AWS_CONTAINER_CREDENTIALS_FULL_URI => "$_[0]/container/credentials",
				AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE => write_file('container_token', "container-token\n"));
		},
		instance => sub { (AWS_EC2_METADATA_SERVICE_ENDPOINT => $_[0], AWS_EC2_METADATA_DISABLED => 'false') },
		web_identity => sub {
			(AWS_ENDPOINT_URL_STS => $_[0], AWS_ROLE_ARN => 'arn:aws:iam::123456789012:role/relay',
				AWS_WEB_IDENTITY_TOKEN_FILE => write_file('web_token', "web.identity+token\n"));
		});
	my %operation = (container => 'ContainerCredentials', instance => 'ImdsCredentials', web_identity => 'AssumeRoleWithWebIdentity');

	for my $name (sort keys %services)
	{
		my $sqs = FakeSqs->start;
		$sqs->control('settings', session_seconds => 4, container_token => 'container-token',
			web_identity_token => 'web.identity+token', role_arn => 'arn:aws:iam::123456789012:role/relay');
		my (undef, $node) = new_sqs_node($name, environment => { %region, $services{$name}->($sqs->endpoint) });
		my $dbh = session($node);
		sqs_queue($dbh, $sqs, 'q');
		refreshes($sqs, $dbh, $name, $operation{$name});

		if ($name eq 'container')
		{
			# the token is rotated with the credentials
			$sqs->control('settings', container_token => 'second-token');
			write_file('container_token', 'second-token');
			$sqs->control('credentials', revoke => ['all']);
			publishes($dbh, 'container: the token is read again');
		}
		if ($name eq 'web_identity')
		{
			$sqs->control('settings', web_identity_token => 'next.identity');
			$sqs->control('credentials', revoke => ['all']);
			value($dbh, q{SELECT id FROM taskoutbox.enqueue('test', queue => 'q')});
			ok(problem_is($dbh, 'q', qr/^AWS STS refused the web identity: InvalidIdentityToken/), 'web_identity: a refusal is reported');
			write_file('web_token', 'next.identity');
			ok(outbox_is_empty($dbh, 'q', 30), 'web_identity: the token is read again');
			push @secrets, 'web.identity', 'next.identity';
		}
		if ($name eq 'instance')
		{
			# a service that hangs holds up nothing, and is reported
			$sqs->plant(op => 'ImdsToken', do => 'delay');
			$sqs->control('credentials', revoke => ['all']);
			value($dbh, q{SELECT id FROM taskoutbox.enqueue('test', queue => 'q')});
			ok(problem_is($dbh, 'q', qr/^no AWS credentials found/), 'instance: one that hangs');
			my $start = mono();
			$node->stop('fast');
			cmp_ok(mono() - $start, '<', 3, 'instance: a shutdown does not wait for it');
			$sqs->clear;
		}
		$logs .= log_of($node);
	}
}

#
# TLS is verified
#
{
	my $sqs = FakeSqs->start(tls => 1);
	my %known = (AWS_ACCESS_KEY_ID => $sqs->access_key, AWS_SECRET_ACCESS_KEY => $sqs->secret_key);
	push @secrets, $sqs->secret_key;
	my ($url) = $sqs->create_queue_with_dead_letters('q.fifo', 3);
	for my $case ([ 'unverified', {} ], [ 'verified', { AWS_CA_BUNDLE => $sqs->ca_file } ])
	{
		my (undef, $node) = new_sqs_node($case->[0], environment => { %region, %known, %{ $case->[1] } });
		my $dbh = session($node);
		value($dbh, q{SELECT taskoutbox.create_queue('q', 'sqs', url => $1, endpoint => $2, retry_base => '20 ms')}, $url, $sqs->https_endpoint);
		if ($case->[0] eq 'verified')
		{
			publishes($dbh, 'https, with a certificate that is known');
		}
		else
		{
			ok(problem_is($dbh, 'q', qr/^no connection: .*certificate/), 'https, with a certificate that is not');
		}
		$logs .= log_of($node);
	}
}

my @leaked = grep { index($logs, $_) >= 0 } @secrets;
is("@leaked", '', 'C109: no secret in any log');

done_testing();
