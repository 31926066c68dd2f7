"""Failures on demand. A test plants faults: each says which requests it hits, and what it does to them.

Which (all given must hold):
  op, queue, access_key                 of the request; the little services' operations too (ContainerCredentials,
                                        ImdsToken, ImdsRole, ImdsCredentials, AssumeRoleWithWebIdentity)
  group, dedup, body                    the request has such an entry (body: contains that text)
  reused                                true: not the first request of its connection; false: the first
and of those
  nth: [2, 5]   every: 3   skip: 1   p: 0.1   times: 1          by count, by chance, at most so often

What ("do"), before the request is carried out or after it ("when"; after means that SQS has accepted it):
  error    code, status, message, retry_after                   before; any code of rules.py or any other; "query_code"
  drop     how: close | reset                                   before; no answer at all
  delay    seconds (none: until the fault is cleared)           before; then it goes on
  trickle  bytes_per_second                                     the answer comes slowly
  answer   kind: empty | garbage | html | json | huge | cut, status      after; or body: the text itself
  entry    entries: [0, 3], whole_group, code, sender_fault, message
                                                                those of a batch fail (else those with group, dedup, body);
                                                                whole_group: and all others of their groups
  lose     entries, whole_group, accept                         those are in neither list; accept: yet they are in the queue
  md5      entries                                              wrong MD5OfMessageBody (of sends), MD5OfBody (of receives)
  date     seconds                                              wrong Date header
  close    -                                                    answers, then closes the connection without a word

All that hit a request come true together. chaos() plants many at once, each with a probability; all chance comes
from one seed.
"""
import asyncio
import itertools
import json
import random
from collections import namedtuple

from .rules import Refusal
from .web import Response

WHICH = {'op', 'queue', 'access_key', 'group', 'dedup', 'body', 'reused', 'nth', 'every', 'skip', 'p', 'times'}
WHAT = {
    'error': {'code', 'query_code', 'status', 'message', 'retry_after', 'when'},
    'drop': {'how', 'when'},
    'delay': {'seconds', 'when'},
    'trickle': {'bytes_per_second'},
    'answer': {'kind', 'status', 'text', 'content_type', 'when'},
    'entry': {'entries', 'whole_group', 'code', 'sender_fault', 'message'},
    'lose': {'entries', 'whole_group', 'accept'},
    'md5': {'entries'},
    'date': {'seconds'},
    'close': set(),
}
AFTER = {'answer'}                      # the others come before, where both are possible

HUGE = 32 * 1024 * 1024
BODIES = {
    'empty': b'',
    'garbage': bytes(range(256)) * 4,
    'html': b'<html><head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n'
            b'</body>\r\n</html>\r\n',
    'json': b'{"Successful": "yes", "Failed": 7, "Messages": {}}',
}

# What chaos() does, by kind. Those of HARMLESS, the default, must not cost a message or its order, only time: what
# SQS, the network and boxes between do in real life (REF feature-retry-behavior; errors: M). "partial" is not among
# them: there a message of a group fails and a later one of the same batch does not, so they change places. SQS treats
# those of one group together (DG23 partitions-and-data-distribution), as "transient" does.
CHAOS = {
    'transient': [
        {'do': 'error', 'code': 'InternalFailure', 'status': 500},
        {'do': 'error', 'code': 'InternalFailure', 'status': 500, 'when': 'after'},
        {'do': 'error', 'code': 'ServiceUnavailable', 'status': 503},
        {'do': 'error', 'code': 'ServiceUnavailable', 'status': 503, 'retry_after': 1, 'when': 'after'},
        {'do': 'error', 'code': 'RequestTimeout', 'status': 400},
        {'do': 'entry', 'entries': [0], 'whole_group': True, 'code': 'InternalError', 'sender_fault': False},
        {'do': 'entry', 'entries': [2, 5], 'whole_group': True, 'code': 'ServiceUnavailable', 'sender_fault': False},
        {'do': 'lose', 'entries': [1], 'whole_group': True, 'accept': False},
        {'do': 'lose', 'entries': [1], 'accept': True},
    ],
    'partial': [
        {'do': 'entry', 'entries': [0], 'code': 'InternalError', 'sender_fault': False},
        {'do': 'entry', 'entries': [1, 3], 'code': 'ServiceUnavailable', 'sender_fault': False},
        {'do': 'lose', 'entries': [0], 'accept': False},
    ],
    'throttle': [
        {'do': 'error', 'code': 'ThrottlingException', 'status': 400},
        {'do': 'error', 'code': 'RequestThrottled', 'status': 403},
        {'do': 'error', 'code': 'TooManyRequestsException', 'status': 429, 'retry_after': 1},
        {'do': 'error', 'code': 'KmsThrottled', 'status': 400},
        {'do': 'entry', 'entries': [0], 'whole_group': True, 'code': 'RequestThrottled', 'sender_fault': True},
    ],
    'connection': [
        {'do': 'drop'},
        {'do': 'drop', 'how': 'reset'},
        {'do': 'drop', 'when': 'after'},
        {'do': 'drop', 'how': 'reset', 'when': 'after'},
        {'do': 'close'},
        {'do': 'delay', 'seconds': .3},
        {'do': 'delay', 'seconds': .3, 'when': 'after'},
    ],
    'answer': [
        {'do': 'answer', 'kind': 'empty'},
        {'do': 'answer', 'kind': 'garbage'},
        {'do': 'answer', 'kind': 'html', 'status': 502, 'content_type': 'text/html', 'when': 'before'},
        {'do': 'answer', 'kind': 'html', 'status': 504, 'content_type': 'text/html'},
        {'do': 'answer', 'kind': 'json'},
        {'do': 'answer', 'kind': 'cut'},
        {'do': 'md5', 'entries': [0]},
        {'do': 'date', 'seconds': 3600},
    ],
    'credentials': [
        {'do': 'error', 'code': 'ExpiredTokenException', 'status': 403},
        {'do': 'error', 'code': 'UnrecognizedClientException', 'status': 403},
    ],
    'destination': [
        {'do': 'error', 'code': 'AccessDenied', 'status': 403},
        {'do': 'error', 'code': 'QueueDoesNotExist', 'status': 400},
        {'do': 'error', 'code': 'KmsDisabled', 'status': 400},
    ],
    'message': [
        {'do': 'entry', 'entries': [0], 'code': 'InvalidMessageContents', 'sender_fault': True},
        {'do': 'error', 'code': 'InvalidParameterValue', 'status': 400},
    ],
}
HARMLESS = ['transient', 'throttle', 'connection', 'answer']


class Fault:
    def __init__(self, number, spec, chance):
        self.number, self.spec, self.chance = number, spec, chance
        self.do = spec.get('do')
        if self.do not in WHAT:
            raise ValueError('"do" must be one of: ' + ' '.join(WHAT))
        unknown = set(spec) - WHICH - WHAT[self.do] - {'do', 'name'}
        if unknown:
            raise ValueError('not known for "%s": %s' % (self.do, ' '.join(sorted(unknown))))
        self.when = spec.get('when', 'after' if self.do in AFTER else 'before')
        self.seen = self.hits = 0
        self.cleared = asyncio.Event()

    def hit(self, context):
        """Whether this fault hits the request. Counts."""
        spec = self.spec
        for name in 'op', 'queue', 'access_key', 'reused':
            if name in spec and spec[name] != context[name]:
                return False
        if not any(map(self.of_entry, context['entries'])):
            return False
        self.seen += 1
        nth = self.seen - spec.get('skip', 0)
        if nth < 1 or ('nth' in spec and self.seen not in spec['nth']) or nth % spec.get('every', 1):
            return False
        if self.hits >= spec.get('times', float('inf')) or self.chance.random() >= spec.get('p', 1):
            return False
        self.hits += 1
        return True

    def of_entry(self, entry):
        spec = self.spec
        return (('group' not in spec or spec['group'] == entry.get('MessageGroupId')) and
                ('dedup' not in spec or spec['dedup'] == entry.get('MessageDeduplicationId')) and
                ('body' not in spec or spec['body'] in str(entry.get('MessageBody'))))

    def chosen(self, entries):
        """The indexes of those entries that it is about."""
        indexes = {index for index, entry in enumerate(entries)
                   if (index in self.spec['entries'] if 'entries' in self.spec else self.of_entry(entry))}
        if self.spec.get('whole_group'):
            groups = {entries[index].get('MessageGroupId') for index in indexes}
            indexes = {index for index, entry in enumerate(entries) if entry.get('MessageGroupId') in groups}
        return indexes


# What batch() in operations.py asks: is the entry carried out, and what is answered for it.
EntryFault = namedtuple('EntryFault', 'accepts failed')


class Hits:
    """The faults that hit one request."""

    def __init__(self, faults, entries):
        self.faults = faults
        self.chosen = {fault.number: fault.chosen(entries) for fault in faults}

    def named(self, do, when=None):
        return [f for f in self.faults if f.do == do and when in (None, f.when)]

    async def strike(self, when, answer=None):
        """Delays, and gives the answer that replaces the right one, if any. (drop is stronger than all others.)"""
        for fault in self.named('delay', when):
            try:
                await asyncio.wait_for(fault.cleared.wait(), fault.spec.get('seconds'))
            except asyncio.TimeoutError:
                pass
        for fault in self.named('drop', when):
            response = Response(200)
            response.drop = fault.spec.get('how', 'close')
            return response
        for fault in self.named('error', when):
            raise refusal(fault.spec)
        for fault in self.named('answer', when):
            return self.instead(fault.spec, answer)
        return None

    @staticmethod
    def instead(spec, answer):
        kind = spec.get('kind', 'text')
        if kind == 'cut':
            response = Response(spec.get('status', 200), answer or b'{"Successful":[]}')
            response.cut = len(response.body) // 2
            return response
        body = b'{"Successful":[' + b' ' * HUGE + b']}' if kind == 'huge' else \
            spec['text'].encode() if kind == 'text' else BODIES[kind]
        return Response(spec.get('status', 200), body,
                        [('Content-Type', spec.get('content_type', 'application/x-amz-json-1.0'))])

    def entry(self, index, entry):
        for fault in self.named('entry'):
            if index in self.chosen[fault.number]:
                failed = {'Id': entry['Id'], 'SenderFault': fault.spec.get('sender_fault', False),
                          'Code': fault.spec.get('code', 'InternalError')}
                if fault.spec.get('message', ''):
                    failed['Message'] = fault.spec['message']
                return EntryFault(False, lambda entry: [failed])
        for fault in self.named('lose'):
            if index in self.chosen[fault.number]:
                return EntryFault(fault.spec.get('accept', False), lambda entry: [])
        return None

    def spoil(self, answer, entries):
        """Wrong digests in a right answer."""
        for fault in self.named('md5'):
            wanted = {entries[index].get('Id') for index in self.chosen[fault.number]}
            for done in answer.get('Successful', []):
                if done['Id'] in wanted and 'MD5OfMessageBody' in done:
                    done['MD5OfMessageBody'] = '0' * 32
            for index, message in enumerate(answer.get('Messages', [])):
                if index in fault.spec.get('entries', [index]):
                    message['MD5OfBody'] = '0' * 32
            if 'MD5OfMessageBody' in answer:
                answer['MD5OfMessageBody'] = '0' * 32

    def finish(self, response):
        for fault in self.named('date'):
            response.date = fault.spec['seconds']
        for fault in self.named('trickle'):
            response.rate = fault.spec['bytes_per_second']
        response.close = response.close or bool(self.named('close'))
        return response


def refusal(spec):
    out = Refusal(spec['code'], message=spec.get('message', 'planted by a test'), status=spec.get('status'),
                  retry_after=spec.get('retry_after'))
    out.query_code = spec.get('query_code', out.query_code)
    return out


NONE = Hits([], [])


class Plan:
    def __init__(self):
        self.numbers = itertools.count(1)
        self.faults = []
        self.chance = random.Random(0)

    def plant(self, spec):
        fault = Fault(next(self.numbers), spec, self.chance)
        self.faults.append(fault)
        return fault.number

    def chaos(self, p, seed=0, kinds=None, **which):
        """Every way of these kinds, each with probability p. Returns the numbers of the faults."""
        self.chance.seed(seed)
        return [self.plant({**spec, 'p': p, **which}) for kind in kinds or HARMLESS for spec in CHAOS[kind]]

    def clear(self, numbers=None):
        for fault in self.faults:
            if numbers is None or fault.number in numbers:
                fault.cleared.set()
        self.faults = [fault for fault in self.faults if not fault.cleared.is_set()]

    def hits(self, context):
        if not self.faults:
            return NONE
        return Hits([fault for fault in self.faults if fault.hit(context)], context['entries'])

    def list(self):
        return [{**f.spec, 'number': f.number, 'seen': f.seen, 'hits': f.hits} for f in self.faults]
