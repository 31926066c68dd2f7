#!/usr/bin/python3
"""A fake Amazon SQS for tests: strict where the real one is, and failing on demand.

It speaks SQS's JSON protocol on loopback, with queues in memory. fakesqs/rules.py holds the rules as tables, each
with its source; queues.py what happens to messages; operations.py the operations; signature.py checks every
request's signature from the bytes on the wire; faults.py how tests make it fail; credentials.py the services from
which clients get credentials, on the same port. Every request is recorded. Tests steer it by POST /_control/COMMAND
with JSON on the same port (class Control below); those requests are neither signed nor made to fail.

It listens on 127.0.0.1 only. When it is ready it prints one line of JSON: {"http": PORT, ...}. It ends when its
standard input ends, or its parent does.
"""
import argparse
import asyncio
import collections
import gc
import itertools
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import uuid

sys.dont_write_bytecode = True

from fakesqs import credentials, faults, operations, queues, rules, signature, web  # noqa: E402
from fakesqs.rules import Refusal                                                   # noqa: E402

RECORDED_WHOLE = 1000       # so many of the last requests with headers and body,
RECORDED_BYTES = 100000     # so much of that

Call = collections.namedtuple('Call', 'number planted gone')


class Sqs:
    def __init__(self, region, account, verify, log):
        self.region, self.account, self.verify, self.log = region, account, verify, log
        self.clock = queues.Clock()
        self.server = web.Server(self.answer, self.clock)
        self.tasks = set()
        self.reset()

    def reset(self):
        self.settings = {
            'deduplication_window': rules.DEDUPLICATION_WINDOW,
            'fifo_calls_per_second': 0,         # 300 on AWS; 0: no limit
            **credentials.SETTINGS,
        }
        self.clock.advanced = self.clock.skew = 0.0
        self.server.continues = True
        self.queues, self.deleted, self.move_tasks = {}, {}, []
        self.credentials = credentials.Store(self.clock)
        self.plan = faults.Plan()
        self.numbers = itertools.count(1)
        self.requests = []
        self.whole = collections.deque(maxlen=RECORDED_WHOLE)
        self.origin = None

    def background(self, coroutine):
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def by_arn(self, arn):
        return next((queue for queue in self.queues.values() if queue.arn == arn), None)

    def url_of(self, name):
        return '%s/%s/%s' % (self.origin, self.account, name)

    async def answer(self, request):
        if request.target.startswith('/_control/'):
            return await self.control(request)
        started = time.monotonic()
        record = {'number': next(self.numbers), 'at': time.time(), 'connection': request.connection,
                  'reused': request.reused, 'op': None, 'queue': None, 'entries': 0, 'bytes': len(request.body),
                  'access_key': None, 'code': None, 'status': None, 'faults': [], 'done': False}
        self.requests.append(record)
        self.whole.append((record, request))
        service = credentials.route(self, request)
        response = await (self.little_service(request, record, *service) if service else self.sqs(request, record))
        record['status'] = None if response.drop else response.status
        request.body = request.body[:RECORDED_BYTES]
        record['ms'] = round((time.monotonic() - started) * 1000, 1)
        if self.log:
            print(time.strftime('%H:%M:%S'), *('%s=%s' % item for item in record.items() if item[0] != 'at'),
                  file=self.log, flush=True)
        return response

    async def little_service(self, request, record, op, function):
        record['op'] = op
        hits = self.hits(request, record, {}, [])
        try:
            response = await hits.strike('before')
            if not response:
                right = function()
                record['done'] = True
                response = await hits.strike('after', right.body) or right
        except Refusal as refusal:
            record['code'] = refusal.type
            response = credentials.sts_error(refusal.status, refusal.type, refusal.message) \
                if op == 'AssumeRoleWithWebIdentity' else \
                credentials.as_json(refusal.status, {'code': refusal.type, 'message': refusal.message})
        return hits.finish(response)

    async def sqs(self, request, record):
        hits = faults.NONE
        try:
            op, body, entries = self.parse(request, record)
            if self.verify:
                record['access_key'] = signature.check(request, self)
            hits = self.hits(request, record, body, entries)
            response = await hits.strike('before')
            if not response:
                right = self.success(await self.perform(op, request, record, body, entries, hits))
                record['done'] = True
                response = await hits.strike('after', right.body) or right
        except Refusal as refusal:
            record['code'] = refusal.query_code
            response = self.refuse(request, refusal)
        response.headers.append(('x-amzn-RequestId', str(uuid.UUID(int=record['number']))))
        return hits.finish(response)

    @staticmethod
    def parse(request, record):
        target = request.header('x-amz-target') or ''
        op = target[len('AmazonSQS.'):] if target.startswith('AmazonSQS.') else ''
        record['op'] = op or None
        if request.method != 'POST' or request.target != '/' or op not in operations.OPERATIONS or \
                request.header('content-type') != 'application/x-amz-json-1.0':
            raise Refusal('UnknownOperationException', message='%s %s %s' % (request.method, request.target, target))
        try:
            body = json.loads(request.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Refusal('SerializationException', message='not a JSON object')
        entries = body['Entries'] if isinstance(body.get('Entries'), list) else [body]
        entries = [entry for entry in entries if isinstance(entry, dict)]
        record['queue'] = str(body.get('QueueUrl') or body.get('QueueName') or '').rsplit('/', 1)[-1]
        record['entries'] = len(entries) if 'Entries' in body else 0
        return op, body, entries

    def hits(self, request, record, body, entries):
        found = self.plan.hits({**record, 'entries': entries or [{}]})
        record['faults'] = [fault.do for fault in found.faults]
        return found

    async def perform(self, op, request, record, body, entries, hits):
        self.origin = self.origin_of(request)
        answer = operations.OPERATIONS[op](self, body, Call(record['number'], hits.entry, request.gone))
        if asyncio.iscoroutine(answer):
            answer = await answer
        hits.spoil(answer, entries)
        return answer

    @staticmethod
    def origin_of(request):
        return '%s://%s' % ('https' if request.secure else 'http', request.header('host'))

    @staticmethod
    def success(answer):
        return web.Response(200, json.dumps(answer, ensure_ascii=False, separators=(',', ':')).encode(),
                            [('Content-Type', 'application/x-amz-json-1.0')])

    @staticmethod
    def refuse(request, refusal):
        headers = [('Content-Type', 'application/x-amz-json-1.0')]
        if (request.header('x-amzn-query-mode') or '').lower() == 'true':
            headers.append(('x-amzn-query-error', '%s;%s' % (
                refusal.query_code, 'Sender' if refusal.sender_fault else 'Receiver')))
        if refusal.retry_after is not None:
            headers.append(('Retry-After', str(refusal.retry_after)))
        return web.Response(refusal.status, json.dumps({'__type': refusal.type, 'message': refusal.message}).encode(),
                            headers)

    async def control(self, request):
        self.origin = self.origin_of(request)
        name = request.target[len('/_control/'):]
        try:
            if name.startswith('_') or name not in vars(Control):
                raise ValueError('no such command')
            answer, status = vars(Control)[name](self, **json.loads(request.body or b'{}')), 200
            if asyncio.iscoroutine(answer):
                answer = await answer
        except Refusal as refusal:
            answer, status = {'error': refusal.query_code, 'message': refusal.message}, 400
        except (ValueError, TypeError, KeyError) as error:
            answer, status = {'error': '%s: %s' % (type(error).__name__, error)}, 400
        if isinstance(answer, web.Response):
            return answer
        return web.Response(status, json.dumps(answer).encode(), [('Content-Type', 'application/json')])


class Control:
    """POST /_control/COMMAND, with the arguments as a JSON object. Errors: 400 {"error": ...}."""

    # Faults: see faults.py

    def plant(sqs, **spec):
        """Plants one. -> its number"""
        return {'number': sqs.plan.plant(spec)}

    def chaos(sqs, p, seed=0, kinds=None, **which):
        """Plants every fault of these kinds with probability p each. -> their numbers"""
        return {'numbers': sqs.plan.chaos(p, seed, kinds, **which)}

    def clear(sqs, numbers=None):
        """Takes them (or all) away, and lets go what they hold."""
        sqs.plan.clear(numbers)
        return {}

    def faults(sqs):
        return {'faults': sqs.plan.list()}

    # The world

    def settings(sqs, continues=None, **changed):
        """Changes some, tells all. continues: whether Expect: 100-continue is answered."""
        unknown = set(changed) - set(sqs.settings)
        if unknown:
            raise ValueError('no such setting: ' + ' '.join(unknown))
        sqs.settings.update(changed)
        if continues is not None:
            sqs.server.continues = continues
        return sqs.settings

    def clock(sqs, advance=0, skew=None):
        """advance: s that the queues' clock goes forward (timeouts, deduplication); skew: s by which the wall clock
        (signatures, Date, expiry of credentials) is wrong."""
        sqs.clock.advanced += advance
        if skew is not None:
            sqs.clock.skew = skew
        for queue in sqs.queues.values():
            queue.wake()
        return {'now': sqs.clock.now(), 'wall': sqs.clock.wall()}

    def credentials(sqs, key=None, secret=None, token=None, expires_in=None, revoke=()):
        """Accepts one more pair, or revokes some (["all"]). -> the access keys known"""
        known = sqs.credentials.known
        for gone in known.copy() if 'all' in revoke else revoke:
            del known[gone]
        if key:
            sqs.credentials.add(key, secret, token, None if expires_in is None else sqs.clock.wall() + expires_in)
        return {'known': list(known)}

    def reset(sqs):
        """As when it was started: no queues, no faults, no records."""
        sqs.plan.clear()
        sqs.reset()
        return {}

    def call(sqs, op, **request):
        """Does an operation of SQS, without signature, faults and record. Its answer, or {"error": code, "message"}."""
        return operations.OPERATIONS[op](sqs, request, Call(None, faults.NONE.entry, lambda: False))

    # What happened

    def requests(sqs, since=0, op=None, queue=None, whole=False):
        """The requests that came after number `since`, in order. whole: the last of them with headers and body."""
        def wanted(record):
            return record['number'] > since and op in (None, record['op']) and queue in (None, record['queue'])
        if whole:
            return {'requests': [{**record, 'method': request.method, 'target': request.target,
                                  'headers': request.headers, 'body': request.body.decode(errors='replace')}
                                 for record, request in sqs.whole if wanted(record)]}
        return {'requests': [record for record in sqs.requests if wanted(record)]}

    def accepted(sqs, queue, since=0, copy=None):
        """All messages that the queue ever accepted, in order, from the `since`-th (0: the first). copy: only these
        fields, as text in PostgreSQL's COPY format, which is faster for many."""
        return messages(sqs.queues[queue].accepted[since:], copy)

    def duplicates(sqs, queue, copy=None):
        """What it dropped as duplicates. message_id and seq are those of the first."""
        return messages(sqs.queues[queue].duplicates, copy)

    async def drain(sqs, queue, copy=None):
        """Receives and deletes until nothing is visible. -> the messages in that order; they know receive_count too"""
        one, got = sqs.queues[queue], []
        while taken := await one.receive(10, 30, 0, None, lambda: False):
            for message in taken:
                got.append({**one.record(message, message.sent_at, None, message.id, message.seq),
                            'receive_count': message.receive_count})
                one.delete(message.handle)
        return messages(got, copy)

    def queue(sqs, queue):
        """Its state."""
        one = sqs.queues[queue]
        return {**one.counts(), 'accepted': len(one.accepted), 'duplicates': len(one.duplicates), 'arn': one.arn,
                'attributes': one.attributes}


def messages(records, copy):
    if not copy:
        return {'messages': records}
    lines = ['\t'.join(as_copy(record[field]) for field in copy) + '\n' for record in records]
    return web.Response(200, ''.join(lines).encode(), [('Content-Type', 'text/plain')])


def as_copy(value):
    if value is None:
        return '\\N'
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace('\\', '\\\\').replace('\t', '\\t').replace('\n', '\\n').replace('\r', '\\r')


def certificate(folder, names):
    """A self-signed one, by openssl. Returns the paths of certificate and key."""
    cert, key = folder + '/cert.pem', folder + '/key.pem'
    alt = ','.join('%s:%s' % ('IP' if name[-1].isdigit() else 'DNS', name) for name in names)
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes',
                    '-days', '2', '-subj', '/CN=' + names[0], '-addext', 'subjectAltName=' + alt, '-keyout', key,
                    '-out', cert], check=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    os.chmod(cert, 0o644)
    return cert, key


def wait_for_the_end():
    """Returns when standard input ends or the parent does."""
    ended = threading.Event()

    def read():
        while os.read(0, 4096):
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    parent = os.getppid()
    while not ended.wait(1) and os.getppid() == parent:
        pass


async def run(options, folder):
    log = open(options.log, 'a') if options.log else None
    sqs = Sqs(options.region, options.account, not options.no_verify, log)
    ready = {'http': await sqs.server.start(options.port), 'region': options.region, 'account': options.account,
             'access_key': credentials.DEFAULT_KEY, 'secret_key': credentials.DEFAULT_SECRET}
    if options.tls:
        cert, key = certificate(folder, options.tls)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        ready.update(https=await sqs.server.start(options.tls_port, context), ca_file=cert)
    gc.freeze()
    print(json.dumps(ready), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, wait_for_the_end)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--port', type=int, default=0, help='default: any free one')
    parser.add_argument('--tls', nargs='*', metavar='NAME',
                        help='also listens with TLS, with a certificate for these names (default: localhost 127.0.0.1)')
    parser.add_argument('--tls-port', type=int, default=0)
    parser.add_argument('--region', default='eu-central-1')
    parser.add_argument('--account', default='123456789012')
    parser.add_argument('--no-verify', action='store_true', help='takes all signatures for right')
    parser.add_argument('--log', metavar='FILE', help='a line per request, without contents')
    options = parser.parse_args()
    if options.tls == []:
        options.tls = ['localhost', '127.0.0.1']
    folder = tempfile.mkdtemp(prefix='fake-sqs.')
    try:
        os.chmod(folder, 0o755)
        asyncio.run(run(options, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
    main()
