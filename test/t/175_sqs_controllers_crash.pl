# Tasks that go through SQS, while everything is killed: orders, payments and
# interest are done exactly once.
# CONSUMER_SECONDS: how long to kill (15); with 60 or more: 20 rounds for 1000 accounts.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FakeSqs;
use Killing;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SqsTest;
use Test::More;

plan skip_all => FakeSqs::missing() if FakeSqs::missing();

my $seconds = $ENV{CONSUMER_SECONDS} || 15;
my ($sqs, $node) = new_sqs_node('sqs_crash', conf => "max_worker_processes = 20\nshared_buffers = 32MB\nwal_level = minimal\nmax_wal_senders = 0\ntaskoutbox.request_timeout = '2s'\n");
my %aws = aws_environment($sqs);
local @ENV{ keys %aws } = values %aws;

# Between commit and delete there is time for a crash, and answers that never come.
$sqs->plant(op => 'DeleteMessageBatch', do => 'drop', p => .5);
$sqs->plant(op => $_, do => 'drop', when => 'after', p => .03) for qw(ReceiveMessage DeleteMessageBatch SendMessageBatch);

create_role($node, $sqs);
kill_everything(seconds => $seconds, rounds => $seconds < 60 ? 4 : 20);

is(scalar(map { $sqs->accepted("$_-dead.fifo", 'dedup') } qw(archive interest payment)), 0, 'nor in SQS');
cmp_ok($sqs->queue('interest.fifo')->{accepted}, '>=', 1000, 'they went through SQS');
unlike(slurp_file($node->logfile), qr/PANIC|signal 6|signal 11|TRAP:/, 'no other crash than ours');

done_testing();
