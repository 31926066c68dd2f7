# What the measures share: a private server, sessions, pgbench, alternating rounds,
# and the rows of the table at the end.  How it is measured is in the top comment of
# bench.pl.

package Bench;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Carp;
use Cwd qw(abs_path);
use DBI;
use DBD::Pg;
use File::Basename qw(dirname);
use File::Temp;
use POSIX ();
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC usleep);

our @EXPORT = qw(
  measure measures full quick
  mono poll median quantile
  session dbh run_sql value
  start_server restart_server stop_server server_log
  pgbench start_pgbench finish_pgbench payload
  alternate compare row skip save heading write_markdown
  forget_tasks enqueue_many known relay
  peer peer_lines start_node
);

my $dir;	# of the server
my $bin;
my $dbh;
my $here = abs_path(dirname(__FILE__));
my $results = $ENV{BENCH_RESULTS} || "$here/results";
our $quick = $ENV{QUICK} ? 1 : 0;

# In a quick run all is smaller, and the medians are of fewer rounds.
sub full
{
	my ($full, $quick_value) = @_;
	return $quick ? $quick_value : $full;
}

my @measures;

# A file of measures calls this: numbers of the table, a name for BENCH=name, what to run.
sub measure
{
	my ($numbers, $name, $code) = @_;
	push @measures, { first => $numbers =~ /(\d+)/, numbers => $numbers, name => $name, code => $code };
	return;
}

sub measures
{
	return sort { $a->{first} <=> $b->{first} } @measures;
}

#
# Numbers
#

sub mono
{
	return clock_gettime(CLOCK_MONOTONIC);
}

sub quantile
{
	my ($p, @values) = @_;
	@values = sort { $a <=> $b } @values;
	my $at = $p * $#values;
	my $below = POSIX::floor($at);
	my $above = $below < $#values ? $below + 1 : $below;
	return $values[$below] + ($at - $below) * ($values[$above] - $values[$below]);
}

sub median
{
	return quantile(.5, @_);
}

# Waits for a condition.
sub poll
{
	my ($condition, $seconds, $every) = @_;
	my $end = mono() + ($seconds // 120);

	for (;;)
	{
		my $result = eval { $condition->() };
		return $result if $result;
		croak 'waited in vain' . ($@ ? ": $@" : '') if mono() > $end;
		usleep(1e6 * ($every // .005));
	}
}

#
# The server
#

sub settings
{
	# Checkpoints and vacuum would hit one side or the other by chance.
	return qq(
shared_preload_libraries = 'taskoutbox'
fsync = on
synchronous_commit = on
shared_buffers = 1GB
checkpoint_timeout = 1h
max_wal_size = 16GB
autovacuum = off
jit = off
max_connections = 100
max_worker_processes = 32
max_prepared_transactions = 5
);
}

sub command
{
	my @command = @_;
	my $log = "$dir/command.log";
	my $pid = fork() // croak "fork: $!";
	if ($pid == 0)
	{
		open(STDOUT, '>', $log) && open(STDERR, '>&', \*STDOUT) && exec(@command);
		POSIX::_exit(127);
	}
	waitpid($pid, 0);
	return if $? == 0;
	open(my $fh, '<', $log) or croak $!;
	croak "@command failed:\n" . join('', <$fh>);
}

sub start_server
{
	my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
	chomp($bin = qx("$pg_config" --bindir));
	$dir = File::Temp::tempdir('taskoutbox-bench.XXXXXX', TMPDIR => 1, CLEANUP => 1);
	delete @ENV{ grep { /^PG/ && $_ ne 'PG_CONFIG' } keys %ENV };
	@ENV{qw(PGHOST PGUSER PGDATABASE)} = ($dir, 'postgres', 'bench');
	# What the relay signs with: an emulator believes all.
	@ENV{qw(AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY)} = ('any', 'any');

	command("$bin/initdb", '-D', "$dir/data", qw(-U postgres -A trust -E UTF8 --locale=C.UTF-8));
	open(my $conf, '>>', "$dir/data/postgresql.conf") or croak $!;
	print $conf settings(), "listen_addresses = ''\nunix_socket_directories = '$dir'\n";
	close $conf;
	pg_ctl('start');
	command("$bin/createdb", '-h', $dir, 'bench');
	$dbh = session();
	run_sql('CREATE EXTENSION taskoutbox');
	relay();
	mkdir $results;
	return;
}

sub pg_ctl
{
	my ($action) = @_;
	command("$bin/pg_ctl", '-D', "$dir/data", '-l', "$dir/log", '-w', '-s', '-t', 600,
		'-m', 'fast', $action);
	return;
}

sub restart_server
{
	$dbh->disconnect;
	pg_ctl('restart');
	$dbh = session();
	return;
}

sub stop_server
{
	$dbh->disconnect if $dbh;
	command("$bin/pg_ctl", '-D', "$dir/data", '-s', '-m', 'immediate', 'stop') if $dir && -e "$dir/data/postmaster.pid";
	return;
}

sub server_log
{
	open(my $fh, '<', "$dir/log") or return;
	my @lines = grep { /ERROR|FATAL|PANIC|WARNING|TRAP/ } <$fh>;
	return @lines > 10 ? @lines[ -10 .. -1 ] : @lines;
}

sub session
{
	return DBI->connect("dbi:Pg:dbname=$ENV{PGDATABASE};host=$dir", 'postgres', '',
		{ RaiseError => 1, PrintError => 0, PrintWarn => 0, AutoCommit => 1, AutoInactiveDestroy => 1 });
}

sub dbh { return $dbh }
sub run_sql { return $dbh->do(shift) }
sub value { return ($dbh->selectrow_array(shift, undef, @_))[0] }

#
# pgbench
#

# JSON of 199 bytes.
sub payload
{
	my $head = '{"order": 1234567, "note": "';
	return $head . 'x' x (199 - length($head) - 2) . '"}';
}

# Starts pgbench with a script.  clients; seconds or transactions (of each client);
# rate (per second); progress.  :payload is known to all scripts, and :last is 0.
sub start_pgbench
{
	my ($script, %o) = @_;
	my $file = File::Temp->new(DIR => $dir);
	print $file $script;
	close $file;

	my $clients = $o{clients} || 1;
	my @command = ("$bin/pgbench", '-n', '-M', 'prepared', '-f', $file->filename,
		'-c', $clients, '-j', $clients > 1 ? 2 : 1, '-D', 'payload=' . payload(), '-D', 'last=0',
		$o{transactions} ? ('-t', $o{transactions}) : ('-T', $o{seconds}),
		$o{rate} ? ('-R', $o{rate}) : (),
		$o{progress} ? ('-P', 1) : ());
	my $pid = open(my $out, '-|') // croak "fork: $!";
	if ($pid == 0)
	{
		open(STDERR, '>&', \*STDOUT) && exec(@command);
		POSIX::_exit(127);
	}
	return { pid => $pid, out => $out, file => $file };
}

# Returns tps, n (transactions), seconds, and progress: tps of each second.
sub finish_pgbench
{
	my ($run) = @_;
	my $out = $run->{out};
	my @lines = <$out>;
	close($out) or croak "pgbench failed:\n@lines";
	my $text = join('', @lines);
	my ($tps) = $text =~ /^tps = ([\d.]+) \(without/m or croak "pgbench said:\n$text";
	my ($n) = $text =~ /actually processed: (\d+)/;
	return {
		tps => $tps,
		n => $n,
		seconds => $tps > 0 ? $n / $tps : 0,
		progress => [ map { /^progress: [\d.]+ s, ([\d.]+) tps/ ? $1 : () } @lines ]
	};
}

sub pgbench
{
	return finish_pgbench(start_pgbench(@_));
}

#
# Tasks
#

# The relay's pid; waits for it.
sub relay
{
	return poll(sub { value(q(SELECT pid FROM taskoutbox.relay_status WHERE database = 'bench' AND state = 'running')) });
}

# Tasks that the relay knows of, delayed and in flight ones, too.
sub known
{
	return value(q(SELECT waiting + delayed + in_flight FROM taskoutbox.queue_metrics
		WHERE queue = 'default' AND relay_running)) // -1;
}

sub forget_tasks
{
	run_sql('TRUNCATE taskoutbox.task_outbox, taskoutbox.deduplication');
	poll(sub { known() == 0 });
	return;
}

# Enqueues many, of so many groups (0: none), and waits until the relay knows them.
sub enqueue_many
{
	my ($n, $groups, $prefix) = @_;
	my $group = $groups ? sprintf(q('%s' || n %% %d), $prefix // 'g', $groups) : 'NULL';
	my $before = known();
	$dbh->do(qq(SELECT count(taskoutbox.enqueue('bench', \$1::jsonb, group_id => $group))
		FROM generate_series(1, $n) n), undef, payload());
	poll(sub { known() == $before + $n }, 600);
	return;
}

#
# Peers
#

my %setup = (
	'PgQ' => \&setup_pgq,
	'graphile-worker' => sub { setup_node('graphile-worker') },
	'pg-boss' => sub { setup_node('pg-boss') });
my %missing;

# Whether a peer is there; plain SQL always is.  Says loudly when not, once.
sub peer
{
	my ($name) = @_;
	return 1 unless $setup{$name};
	if (!defined $missing{$name})
	{
		$missing{$name} = $setup{$name}->();
		print STDERR "bench: NO COMPARISON WITH $name: $missing{$name}\n" if $missing{$name};
	}
	return !$missing{$name};
}

sub setup_pgq
{
	eval { run_sql('CREATE EXTENSION pgq'); 1 } or return 'no extension pgq (Debian: postgresql-NN-pgq3)';
	value(q(SELECT pgq.create_queue('bench')));
	return '';
}

my %module = ('graphile-worker' => 'graphile.mjs', 'pg-boss' => 'pgboss.mjs');

sub setup_node
{
	my ($name) = @_;
	my $version = qx(node --version 2>/dev/null) || '';
	return 'no node 20 or later' unless $version =~ /^v(\d+)/ && $1 >= 20;
	return 'nothing in bench/peers/node_modules (npm ci)' unless -d "$here/peers/node_modules/$name";
	peer_lines($name, 'setup');
	return '';
}

# Starts a peer's script; returns its pid and what it prints.
sub start_node
{
	my ($name, @arguments) = @_;
	my $pid = open(my $out, '-|', 'node', "$here/peers/$module{$name}", @arguments) // croak "node: $!";
	return ($pid, $out);
}

sub peer_lines
{
	my ($name, @arguments) = @_;
	my ($pid, $out) = start_node($name, @arguments);
	chomp(my @lines = <$out>);
	close($out) or croak "$module{$name} @arguments failed";
	return @lines;
}

#
# Rounds
#

# Runs all sides, again and again: A B A B.  Each side is [name, code] and gives a number, or a
# hash of numbers.  A peer's is [name, code, peer]: it runs only if that peer is there, and in
# fewer rounds unless a number of rounds is added.  Returns { name => [numbers] }, or { 'name key' =>
# [numbers] }.
sub alternate
{
	my ($what, @sides) = @_;
	my $rounds = full(7, 3);
	my %got;

	for my $round (1 .. $rounds)
	{
		for my $side (@sides)
		{
			my ($name, $code, $peer, $peer_rounds) = @$side;
			next if $peer && ($round > ($peer_rounds // full(3, 1)) || !peer($peer));
			my $result = $code->();
			my %numbers = ref $result ? map { ("$name $_" => $result->{$_}) } keys %$result : ($name => $result);
			for my $key (sort keys %numbers)
			{
				push @{ $got{$key} }, $numbers{$key};
				save('rounds', $what, $round, $key, $numbers{$key});
			}
		}
		print STDERR "\r\e[Kbench: $what, round $round of $rounds" if -t STDERR;
	}
	print STDERR "\r\e[K" if -t STDERR;
	return \%got;
}

# A row of the table from two sides: the median of the ratios within the rounds.
sub compare
{
	my ($number, $what, $got, $ours, $theirs, $target) = @_;
	return unless $got->{$ours} && $got->{$theirs};
	my @a = @{ $got->{$theirs} };
	my @b = @{ $got->{$ours} };
	row($number, $what, $target, map { $a[$_] > 0 ? $b[$_] / $a[$_] : 0 } 0 .. ($#a < $#b ? $#a : $#b));
	return;
}

my @rows;
my @heading;

sub number
{
	my ($x) = @_;
	my $text = sprintf(abs($x) >= 100 ? '%.0f' : abs($x) >= 10 ? '%.1f' : '%.2f', $x);
	1 while $text =~ s/^(-?\d+)(\d{3})/$1,$2/;
	return $text;
}

# A row of the table.  target: '>= 2', '<= 16', or undef for what is shown for information.
sub row
{
	my ($number, $what, $target, @values) = @_;
	my $value = median(@values);
	my $verdict = '';

	if (defined $target)
	{
		my ($op, $limit) = $target =~ /^([<>]=) ([\d.]+)/ or croak "target $target";
		# as it is shown
		my $shown = sprintf('%.2f', $value);
		$verdict = ($op eq '>=' ? $shown >= $limit : $shown <= $limit) ? 'met' : 'MISSED';
	}
	push_row($number, $what, number($value),
		@values > 1 ? number(quantile(0, @values)) . ' - ' . number(quantile(1, @values)) : '',
		$target // '', $verdict);
	return;
}

sub skip
{
	my ($number, $what, $target, $why) = @_;
	print STDERR "bench: NO MEASURE OF $what: $why\n";
	push_row($number, $what, '', $why, $target, 'SKIPPED');
	return;
}

sub push_row
{
	my @row = @_;
	push @rows, \@row;
	save('table', @row);
	printf "%-3s %-66s %9s  %-16s %-8s %s\n", @row;
	return;
}

# The table for a document.
sub write_markdown
{
	open(my $fh, '>', "$results/table.md") or croak "$results/table.md: $!";
	print $fh map { "- $_\n" } @heading;
	print $fh "\n| no | measure | value | range | target | verdict |\n| --- | --- | --- | --- | --- | --- |\n";
	print $fh map { '| ' . join(' | ', map { s/^ +/- /r } @$_) . " |\n" } @rows;
	close $fh;
	return;
}

# Lines of bench/results/NAME.tsv, which begins with what the run ran on.
my %files;

sub heading
{
	@heading = @_;
	return;
}

sub save
{
	my ($name, @fields) = @_;
	my $fh = $files{$name};
	if (!$fh)
	{
		open($fh, '>', "$results/$name.tsv") or croak "$results/$name.tsv: $!";
		$fh->autoflush(1);
		print $fh map { "# $_\n" } @heading;
		$files{$name} = $fh;
	}
	print $fh join("\t", @fields), "\n";
	return;
}

1;
