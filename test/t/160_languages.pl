# The consumers of doc/consumers.md, as they stand there: a controller, Python, Node
# and shell. Each adds interest exactly once, although its process is killed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $doc = slurp_file("$FindBin::RealBin/../../doc/consumers.md");
my ($setup, $controller) = $doc =~ /^```sql(?: controller)?\n(.*?)^```/gms;
my %code = map { $_ => $doc =~ /^```$_\n(.*?)^```/ms ? $1 : die "no $_ in the documentation" } qw(python js sh);

# Node's modules come with what test/fauxqs/setup installs, or from Debian.
$ENV{NODE_PATH} = join ':', grep { defined } $ENV{NODE_PATH}, "$FindBin::RealBin/../fauxqs/node_modules", '/usr/share/nodejs';
my %language = (
	python => { name => 'Python', file => 'consumer.py', interpreters => [ 'python3', '/usr/bin/python3' ], needs => [ '-c', 'import psycopg2' ], package => 'python3-psycopg2' },
	js => { name => 'Node', file => 'consumer.js', interpreters => ['node'], needs => [ '-e', 'require("pg")' ], package => 'nodejs and node-pg' },
	sh => { name => 'shell', file => 'consumer.sh', interpreters => ['sh'], needs => [ '-c', 'command -v psql' ], package => 'postgresql-client' });

my $node = new_node('languages');
my $dbh = session($node);
my $tasks = 60;
my $dir = PostgreSQL::Test::Utils::tempdir();

$dbh->do($setup);
$dbh->do('SELECT taskoutbox.alter_queue($1, visibility_timeout => $2, max_receive_count => 20)', undef, 'interest', '1 s');
$dbh->do('INSERT INTO accounts SELECT a, 0 FROM generate_series(1, 10) a');
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
$ENV{PGUSER} = (getpwuid($<))[0];

# 60 tasks for 10 accounts, and one that no consumer can do.
sub enqueue_all
{
	$dbh->do('UPDATE accounts SET balance = 0');
	$dbh->do('BEGIN');
	$dbh->do(q(SELECT taskoutbox.enqueue('account.interest', jsonb_build_object('account', n % 10 + 1, 'amount', '1.25'), 'a' || n % 10, queue => 'interest')
		FROM generate_series(1, $1::int) n), undef, $tasks);
	$dbh->do('COMMIT');
	return;
}

sub is_empty
{
	return value($dbh, q(SELECT count(*) = 0 FROM taskoutbox.task_outbox));
}

sub check
{
	my ($what) = @_;
	ok(poll(\&is_empty), "$what: all tasks are done")
	  or diag(explain([ rows($dbh, 'SELECT id, receive_count, last_error FROM taskoutbox.task_outbox LIMIT 3') ]));
	is(value($dbh, q(SELECT string_agg(DISTINCT balance::text, ' ') FROM accounts)), '7.50', "$what: and each once");
	return;
}

for my $key (sort keys %language)
{
	my $l = $language{$key};
  SKIP:
	{
		my ($interpreter) = grep { system(join(' ', map { quotemeta } $_, @{ $l->{needs} }) . ' >/dev/null 2>&1') == 0 } @{ $l->{interpreters} };
		if (!$interpreter)
		{
			diag("SKIPPED: the consumer in $l->{name} is not tested: install $l->{package}");
			skip("$l->{name} or its driver is missing ($l->{package})", 4);
		}
		append_to_file("$dir/$l->{file}", $code{$key});
		enqueue_all();
		my $pid;
		my $start = sub {
			$pid = fork;
			die $! unless defined $pid;
			return if $pid;
			# a process group of its own, to be killed with what it started
			setpgrp;
			open(STDOUT, '>>', "$dir/log");
			open(STDERR, '>>', "$dir/log");
			exec($interpreter, "$dir/$l->{file}") or POSIX::_exit(127);
		};
		my $stop = sub {
			kill 'KILL', -$pid;
			waitpid $pid, 0;
		};
		$start->();
		# killed when some are done, and some are not
		ok(poll(sub { value($dbh, 'SELECT count(*) < $1::int FROM taskoutbox.task_outbox', $tasks - 5) }), "$l->{name}: it works")
		  or diag(slurp_file("$dir/log"));
		$stop->();
		$start->();
		check($l->{name});
		# a failure is said, and does not stop it
		my $id = value($dbh, q(SELECT id FROM taskoutbox.enqueue('account.interest', '{"account": 1, "amount": "a lot"}', queue => 'interest')));
		ok(poll(sub { value($dbh, 'SELECT receive_count > 0 FROM taskoutbox.task_outbox WHERE id = $1', $id) }), "$l->{name}: what fails comes back");
		$stop->();
		$dbh->do('DELETE FROM taskoutbox.task_outbox');
	}
}

$dbh->do($controller);
enqueue_all();
check('SQL');

done_testing();
