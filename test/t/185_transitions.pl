# Queues with consumer workers, whose settings change all the time: another backend,
# other roles, more or fewer workers, paused, dropped and created again, while relay,
# launcher and workers are terminated and publishing is switched off and on. Whatever
# came before, a queue that may be served is served at once, and each task done once.
# TRANSITIONS_SEED repeats a run, as far as chance allows.

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

my $steps = 300;
my $seed = $ENV{TRANSITIONS_SEED} || (time ^ $$);
srand($seed);

my ($sqs, $node) = new_sqs_node('transitions', conf => "max_worker_processes = 30\ntaskoutbox.request_timeout = '2s'\n");
my $dbh = session($node);

$dbh->do('CREATE TABLE public.done (n int, queue text)');
for my $role (qw(app other))
{
	create_controller_role($dbh, $role);
	$dbh->do("GRANT INSERT ON public.done TO $role");
	$dbh->do("SET SESSION AUTHORIZATION $role");
	$dbh->do(qq(CREATE FUNCTION $role.f(m taskoutbox.message) RETURNS void LANGUAGE sql AS
		'INSERT INTO public.done VALUES ((m.payload ->> ''n'')::int, m.queue)'));
	$dbh->do('RESET SESSION AUTHORIZATION');
}

my %queues;         # name => what it should be
my $publish = 1;
my $n = 0;          # tasks
my $nurls = 0;
my @trace;

sub one_of
{
	return $_[ int(rand(@_)) ];
}

# Does it, unless it is refused for a reason that these tests know; returns whether it was done.
sub change
{
	my ($sql, @bind) = @_;
	my $state = state_of($dbh, $sql, @bind);

	push @trace, sprintf('%s (%s): %s', $sql, join(', ', map { $_ // 'NULL' } @bind), $state);
	# messages in flight; controllers of another role
	$state =~ /^(00000|TO018|TO019)$/ or BAIL_OUT("seed $seed: $trace[-1]");
	return $state eq '00000';
}

sub register
{
	my ($name, $type, $role) = @_;
	$queues{$name}{role}{$type} = $role
	  if change(q{SELECT taskoutbox.register_controller($1, $2::regprocedure, 'atomic', $3)}, $type, "$role.f(taskoutbox.message)", $name);
	return;
}

# A poll that ends with its worker may have got a message: that comes again after the visibility timeout.
sub create
{
	my ($name) = @_;
	my $backend = one_of(qw(embedded sqs));
	my ($url) = $sqs->create_queue_with_dead_letters($name . ++$nurls . '.fifo', 5);

	change(q{SELECT taskoutbox.create_queue($1, backend => $2, url => $3, visibility_timeout => '2 s')},
		$name, $backend, $backend eq 'sqs' ? $url : undef);
	$queues{$name} = { backend => $backend, url => $url, is_paused => 0, consumers => 1, role => {}, open => {} };
	register($name, 'a', 'app');
	return;
}

sub put
{
	my ($name) = @_;
	for my $type (sort keys %{ $queues{$name}{role} })
	{
		value($dbh, q{SELECT id FROM taskoutbox.enqueue($1, jsonb_build_object('n', $2::int), group_id => $3, queue => $4)},
			$type, ++$n, one_of('g', undef), $name);
		$queues{$name}{open}{$n} = $type;
		push @trace, "task $n of $type in $name";
	}
	return;
}

sub is_drained
{
	my ($name) = @_;
	my $open = $queues{$name}{open};

	delete @$open{ map { $_->{n} } rows($dbh, 'SELECT n FROM public.done WHERE n = ANY ($1)', [ keys %$open ]) };
	return !%$open;
}

sub is_served
{
	my ($queue) = @_;
	my %roles = map { $_ => 1 } values %{ $queue->{role} };

	return 0 if $queue->{is_paused} || $queue->{consumers} == 0;
	return $queue->{backend} eq 'embedded' || $publish && keys %roles == 1;
}

my %changes = (
	backend => sub {
		my ($name, $queue) = @_;
		my $to = $queue->{backend} eq 'sqs' ? 'embedded' : 'sqs';

		# What is in SQS would stay there.
		return if $queue->{backend} eq 'sqs' && !is_drained($name);
		$queue->{backend} = $to
		  if change('SELECT taskoutbox.alter_queue($1, backend => $2, url => $3)', $name, $to, $to eq 'sqs' ? $queue->{url} : undef);
	},
	pause => sub {
		my ($name, $queue) = @_;
		change('SELECT taskoutbox.' . ($queue->{is_paused} ? 'resume' : 'pause') . '_queue($1)', $name);
		$queue->{is_paused} = !$queue->{is_paused};
	},
	consumers => sub {
		my ($name, $queue) = @_;
		my $consumers = int(rand(4));
		$queue->{consumers} = $consumers if change('SELECT taskoutbox.alter_queue($1, consumers => $2)', $name, $consumers);
	},
	role => sub {
		my ($name) = @_;
		register($name, 'a', one_of(qw(app other)));
	},
	type => sub {
		my ($name, $queue) = @_;

		if (!$queue->{role}{b})
		{
			register($name, 'b', one_of(qw(app other)));
		}
		elsif (!grep { $_ eq 'b' } values %{ $queue->{open} })
		{
			change(q{SELECT taskoutbox.unregister_controller('b', $1)}, $name);
			delete $queue->{role}{b};
		}
	},
	create => sub {
		my ($name) = @_;
		create($name) if is_drained($name) && change('SELECT taskoutbox.drop_queue($1)', $name);
	},
	terminate => sub {
		change('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = $1 LIMIT 1',
			'taskoutbox ' . one_of(qw(relay launcher consumer consumer)));
	},
	publish => sub {
		$publish = !$publish;
		$node->append_conf('postgresql.conf', 'taskoutbox.publish = ' . ($publish ? 'on' : 'off'));
		$node->reload;
		push @trace, "publish $publish";
	},
	task => sub {
		my ($name) = @_;
		put($name);
	});

my @names = qw(one two);
my @changes = sort keys %changes;
my ($late, $worst) = (undef, 0);

create($_) for @names;
for my $step (1 .. $steps)
{
	for (1 .. 1 + int(rand(4)))
	{
		my $name = one_of(@names);
		$changes{ one_of(@changes, 'backend') }->($name, $queues{$name});
	}
	put($_) for @names;
	my $start = mono();
	($late) = grep { is_served($queues{$_}) && !poll(sub { is_drained($_) }, 15) } @names;
	last if $late;
	$worst = mono() - $start if mono() - $start > $worst;
}
ok(!$late, 'whatever changed, a queue that may be served is served')
  || diag(explain("seed $seed", $queues{$late}, [ @trace > 40 ? @trace[ -40 .. -1 ] : @trace ],
	[ rows($dbh, 'SELECT queue, task_type, workers, problem FROM taskoutbox.controller_status') ]));
note(sprintf('%d tasks, the longest wait %.1f s', $n, $worst));
is(value($dbh, 'SELECT count(*) - count(DISTINCT n) FROM public.done'), 0, 'each task is done once');
is(value($dbh, 'SELECT count(*) FROM taskoutbox.dead_letter'), 0, 'none is dead');
unlike(slurp_file($node->logfile), qr/PANIC|signal 6|signal 11|TRAP:/, 'nothing crashed');

done_testing();
