# What can be tested without a server: characters, requests to SQS, whose fault its
# errors are, urls, AWS's files.  See test/unit/unit.c.

use strict;
use warnings FATAL => 'all';

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $program = "$PostgreSQL::Test::Utils::tmp_check/unit";
my $libs = `curl-config --libs 2>/dev/null || pkg-config --libs libcurl`;
my $cflags = `curl-config --cflags 2>/dev/null || pkg-config --cflags libcurl`;
my @sources = map { "$top/src/$_.c" } qw(aws_profile characters sqs_protocol);
chomp($libs, $cflags);

system(join(' ', $ENV{CC} || 'cc', '-std=c99 -Wall -Wextra -Wno-sign-compare -Werror -g -fsanitize=address,undefined',
		"-I$top/src", $cflags, '-o', $program, "$top/test/unit/unit.c", @sources, $libs)) == 0
  or die 'cannot compile';
my $folder = PostgreSQL::Test::Utils::tempdir();
for my $line (`'$program' '$folder' 2>&1`)
{
	$line =~ /^(not )?ok \d+ - (.*)/ ? ok(!$1, $2) : note($line);
}
is($?, 0, 'ended well');
done_testing();
