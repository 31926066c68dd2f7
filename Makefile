# taskoutbox: PostgreSQL 15 or later, libcurl 7.86.0 or later.  "make help" lists what can be made.

MODULE_big = taskoutbox
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))

EXTENSION = taskoutbox
DATA = taskoutbox--0.1.sql

# Tests: "make installcheck" starts private servers, on unix sockets only.
REGRESS = \
	enqueue \
	insert \
	receive \
	deduplication \
	delay \
	operate \
	dead_letter \
	observe \
	controller \
	installation \
	roles \
	check \
	arguments \
	queue \
	schedule \
	reinstall \
	security
ISOLATION = $(patsubst specs/%.spec,%,$(sort $(wildcard specs/*.spec)))
TAP_TESTS = 1
PROVE_TESTS ?= test/t/*.pl

private_server = --temp-config=$(CURDIR)/test/regress.conf --encoding=UTF8 --no-locale
REGRESS_OPTS = $(private_server) --temp-instance=$(CURDIR)/tmp_check
ISOLATION_OPTS = $(private_server) --temp-instance=$(CURDIR)/tmp_check_iso

# -Wextra without the warnings that the server's own headers and idioms give.
PG_CFLAGS += -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers
ifeq ($(WERROR),1)
PG_CFLAGS += -Werror
endif

curl = $(shell curl-config $(1) 2>/dev/null || pkg-config $(1) libcurl 2>/dev/null)
PG_CPPFLAGS += $(call curl,--cflags)
SHLIB_LINK += $(or $(call curl,--libs),-lcurl)

# The server loads all libraries into one space of names: ours keep theirs to themselves.
ifeq ($(shell uname),Linux)
SHLIB_LINK += -Wl,--version-script=src/exports.map
endif

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

# A bare machine has no PGXS yet: "make demo" and "make test" install it, and then call make again.
ifneq ($(wildcard $(PGXS)),)

include $(PGXS)

ifneq ($(shell test $(MAJORVERSION) -ge 15 && echo ok),ok)
$(error taskoutbox needs PostgreSQL 15 or later, and $(PG_CONFIG) is that of $(VERSION))
endif

# The server's makefiles do not know which headers an object depends on: all of ours.
$(OBJS) $(OBJS:.o=.bc): $(wildcard src/*.h)
$(OBJS) $(OBJS:.o=.bc): | check-libcurl

# Asks the compiler, which knows best what it will find.
.PHONY: check-libcurl
check-libcurl:
	@printf '%s\n' '#include <curl/curlver.h>' '#if LIBCURL_VERSION_NUM < 0x075600' '#error' '#endif' \
		| $(CC) $(CPPFLAGS) -fsyntax-only -x c - 2>/dev/null \
		|| { echo 'taskoutbox needs the headers of libcurl 7.86.0 or later (Debian: libcurl4-openssl-dev)' >&2; exit 1; }

# Loaded by tests, by their paths.
test_libraries = test/slow_commit test/clock test/crash
.PHONY: $(test_libraries)
$(test_libraries):
	@$(MAKE) --silent --no-print-directory -C $@ with_llvm=no
installcheck: $(test_libraries)
clean: $(test_libraries:%=clean-%)
.PHONY: $(test_libraries:%=clean-%)
$(test_libraries:%=clean-%): clean-%:
	@$(MAKE) --silent --no-print-directory -C $* clean

# Databases are created with the encoding of the locale, and half of the tests is about characters.
installcheck: export LANG = C.UTF-8

else

.PHONY: all install uninstall installcheck clean
all install uninstall installcheck clean:
	@echo 'No PGXS found through PG_CONFIG=$(PG_CONFIG): install postgresql-server-dev-NN, or name the right pg_config' >&2; exit 1

endif

export PG_CONFIG KEEP BENCH QUICK

# "+": these run make, and pass on its variables and its job server.
.PHONY: setup demo test bench help
setup:
	@test/setup
demo:
	+@test/demo
test:
	+@test/run
bench:
	+@bench/run

# On other Debians than this one, and so on other majors.
.PHONY: test-15 test-17 test-18 test-upgrade check-style indent
test-15:
	@test/matrix bookworm 15
test-17:
	@test/matrix trixie 17
test-18:
	@test/matrix forky 18
test-upgrade:
	@test/upgrade 15 17
	@test/upgrade 17 18
check-style:
	@test/matrix trixie 17 test/style
indent:
	@test/matrix trixie 17 test/style --indented | tar --extract --overwrite --no-same-owner

help:
	@echo 'make demo              install what is missing (root, Debian), build, install, and tell the story on a throw-away server'
	@echo 'make demo KEEP=1       the same, and leave that server running'
	@echo 'make test              install what is missing (root, Debian), build, install, and run all tests'
	@echo 'make bench             the same, and measure, beside plain SQL and other queues (BENCH=name: one measure; QUICK=1: in 3 minutes)'
	@echo 'make, make install     build, install'
	@echo 'make installcheck      run the tests against what is installed (not as root)'
	@echo 'make test-15           run all tests on PostgreSQL 15, in a Debian of its own (root, Debian); test-17 and test-18, too'
	@echo 'make test-upgrade      run pg_upgrade from 15 to 17 and from 17 to 18, with tasks of all kinds (root, Debian)'
	@echo 'make check-style       check warnings of two compilers, headers, scripts (root, Debian)'
	@echo 'make indent            indent the C sources as PostgreSQL does (root, Debian)'
	@echo 'make setup             install what is missing to build and test (root, Debian)'
	@echo 'Variables: PG_CONFIG=/path/to/pg_config, WERROR=1, PROVE_TESTS=test/t/NAME.pl, PROVE_FLAGS=--verbose'
