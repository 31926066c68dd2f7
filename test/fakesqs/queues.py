"""Queues: what SQS does with messages once they are accepted.

A message waits in a lane. On a FIFO queue a lane is a message group: its messages leave in the order in which
they arrived, and none leaves while another of the lane is in flight (DG23 FIFO-queues-understanding-logic; REC
test_fifo_message_group_visibility). On a standard queue each message has a lane to itself. What happens later
(the end of a delay or of a visibility timeout) is in a heap of timers, looked at whenever somebody asks; a
receive that waits sleeps until the next timer or until something changes.

Each queue also keeps what the tests are for: `accepted`, all messages ever accepted, in order.
"""
import asyncio
import base64
import collections
import hashlib
import heapq
import itertools
import json
import struct
import time
import uuid

from . import rules
from .rules import Refusal, invalid


HANG_UP = 5     # s after which a receive that waits notices that the client hung up


class Clock:
    """Two clocks that tests can set: of the queues (timeouts, deduplication), and of the wall (signatures, Date)."""

    def __init__(self):
        self.advanced = 0.0
        self.skew = 0.0

    def now(self):
        return time.time() + self.advanced

    def wall(self):
        return time.time() + self.skew


def md5(data):
    return hashlib.md5(data).hexdigest()


def md5_of_attributes(attributes):
    """The digest over names, types and values, in the order of names: DG sqs-message-metadata."""
    if not attributes:
        return None
    out = []
    for name in sorted(attributes):
        attribute = attributes[name]
        kind = attribute['DataType']
        binary = kind.startswith('Binary')
        value = base64.b64decode(attribute['BinaryValue']) if binary else attribute['StringValue'].encode()
        for part in name.encode(), kind.encode():
            out += struct.pack('>I', len(part)), part
        out += b'\2' if binary else b'\1', struct.pack('>I', len(value)), value
    return md5(b''.join(out))


class Message:
    __slots__ = ('id', 'seq', 'body', 'md5', 'attributes', 'attributes_md5', 'trace', 'group', 'dedup', 'sent_at',
                 'receive_count', 'first_received_at', 'received_at', 'handle', 'state', 'timer', 'source_arn')

    # States: delayed, waiting, in flight, gone
    def __init__(self, body, group, dedup, attributes, trace):
        self.body, self.group, self.dedup, self.attributes, self.trace = body, group, dedup, attributes, trace
        self.md5 = md5(body.encode())
        self.attributes_md5 = md5_of_attributes(attributes)
        self.source_arn = None
        self.receive_count = 0
        self.first_received_at = None


class Lane:
    __slots__ = ('waiting', 'in_flight')

    def __init__(self):
        self.waiting = []           # heap of (seq, message)
        self.in_flight = 0

    def head(self):
        while self.waiting and self.waiting[0][1].state != 'waiting':
            heapq.heappop(self.waiting)
        return self.waiting[0][1] if self.waiting else None


class Queue:
    def __init__(self, sqs, name, attributes):
        self.sqs, self.clock, self.name = sqs, sqs.clock, name
        self.arn = 'arn:aws:sqs:%s:%s:%s' % (sqs.region, sqs.account, name)
        self.fifo = name.endswith('.fifo')
        self.attributes = attributes
        self.created = self.modified = int(self.clock.now())
        self.purged = None
        self.seq = 18849496460467696128         # what SQS's sequence numbers look like; 20 digits: M
        self.accepted = []
        self.duplicates = []
        self.dedup_ids = collections.OrderedDict()
        self.attempts = {}
        self.waiters = set()
        self.tick = itertools.count()
        self.calls = {}
        self.empty()

    def empty(self):
        self.messages = {}
        self.lanes = {}
        self.ready = []             # heap of (seq of the head, lane); stale ones are skipped
        self.timers = []            # heap of (when, tick, message); the same
        self.in_flight = 0

    def number(self, name):
        return int(self.attributes[name])

    def redrive_policy(self):
        """(queue, maxReceiveCount) or None."""
        policy = json.loads(self.attributes.get('RedrivePolicy') or '{}')
        dead = policy and self.sqs.by_arn(policy['deadLetterTargetArn'])
        return (dead, int(policy['maxReceiveCount'])) if dead else None

    # Sending

    def send(self, message, delay=None, request=None):
        """Accepts a message, unless it is a duplicate. Returns what both are answered: (MessageId, SequenceNumber)."""
        now = self.clock.now()
        if self.fifo:
            by_group = self.attributes.get('DeduplicationScope') == 'messageGroup'      # M
            key = (message.group if by_group else None, message.dedup)
            while self.dedup_ids:
                oldest = next(iter(self.dedup_ids))
                if self.dedup_ids[oldest][0] + self.sqs.settings['deduplication_window'] > now:
                    break
                del self.dedup_ids[oldest]
            known = self.dedup_ids.get(key)
            if known:
                self.duplicates.append(self.record(message, now, request, known[1], known[2]))
                return known[1:]
        message.id = str(uuid.uuid4())
        self.put(message, now, self.number('DelaySeconds') if delay is None else delay)
        if self.fifo:
            self.dedup_ids[key] = (now, message.id, message.seq)
        self.accepted.append(self.record(message, now, request, message.id, message.seq))
        return message.id, message.seq

    @staticmethod
    def record(message, now, request, message_id, seq):
        return {'message_id': message_id, 'seq': str(seq), 'group': message.group, 'dedup': message.dedup,
                'body': message.body, 'attributes': message.attributes, 'trace': message.trace, 'at': now,
                'request': request}

    def put(self, message, now, delay):
        self.seq += 1
        message.seq, message.sent_at = self.seq, now
        self.messages[message.id] = message
        if delay:
            self.set_timer(message, 'delayed', now + delay)
        else:
            self.make_waiting(message)
        self.wake()

    def lane_of(self, message):
        return message.group if self.fifo else message.id

    def set_timer(self, message, state, when):
        message.state, message.timer = state, when
        heapq.heappush(self.timers, (when, next(self.tick), message))

    def make_waiting(self, message):
        message.state = 'waiting'
        key = self.lane_of(message)
        lane = self.lanes.setdefault(key, Lane())
        heapq.heappush(lane.waiting, (message.seq, message))
        if lane.head() is message:
            self.offer(key)

    def offer(self, key):
        """Puts a lane forward for receives, if it has anything. take() sees whether it is locked."""
        head = self.lanes[key].head()
        if head:
            heapq.heappush(self.ready, (head.seq, key))

    def land(self, message):
        """A message is not in flight any more."""
        self.in_flight -= 1
        key = self.lane_of(message)
        self.lanes[key].in_flight -= 1
        self.offer(key)

    def expire(self):
        now = self.clock.now()
        while self.timers and self.timers[0][0] <= now:
            when, _, message = heapq.heappop(self.timers)
            if message.state in ('delayed', 'in flight') and message.timer == when:
                flying = message.state == 'in flight'
                self.make_waiting(message)
                if flying:
                    self.land(message)
        return now

    # Receiving

    async def receive(self, limit, visibility, wait, attempt, gone):
        """Messages, perhaps after waiting for them. gone() says that nobody waits for the answer any more."""
        if self.fifo and attempt and (again := self.again(attempt, visibility)):
            return again
        end = time.monotonic() + wait
        while not gone():
            taken = self.take(limit, visibility)
            left = end - time.monotonic()
            if taken or left <= 0:
                if self.fifo and attempt and taken:
                    self.attempts[attempt] = (self.clock.now(), [(m, m.handle, m.timer) for m in taken])
                return taken
            if self.timers:
                left = min(left, max(self.timers[0][0] - self.clock.now(), .001))
            woken = asyncio.get_running_loop().create_future()
            self.waiters.add(woken)
            await asyncio.wait([woken], timeout=min(left, HANG_UP))
            self.waiters.discard(woken)
        return []

    def wake(self):
        for woken in self.waiters:
            if not woken.done():
                woken.set_result(None)

    def again(self, attempt, visibility):
        """The same messages once more for the same ReceiveRequestAttemptId, unless one was touched: M."""
        at, known = self.attempts.pop(attempt, (0, []))
        now = self.clock.now()
        if not known or now - at > rules.ATTEMPT_ID_WINDOW:
            return None
        self.expire()
        if any(m.state != 'in flight' or m.handle != handle or m.timer != timer for m, handle, timer in known):
            return None
        for message, _, _ in known:
            self.set_timer(message, 'in flight', now + visibility)
        self.attempts[attempt] = (at, [(m, m.handle, m.timer) for m, _, _ in known])
        return [m for m, _, _ in known]

    def take(self, limit, visibility):
        now = self.expire()
        dead = self.redrive_policy()
        retention = self.number('MessageRetentionPeriod')
        taken = []
        while len(taken) < limit and self.ready and self.in_flight < rules.IN_FLIGHT:
            seq, key = heapq.heappop(self.ready)
            lane = self.lanes.get(key)
            if not lane or lane.in_flight or not lane.head() or lane.head().seq != seq:
                continue
            # As many of one group as there are: DG23 FIFO-queues-understanding-logic
            while len(taken) < limit and (message := lane.head()):
                heapq.heappop(lane.waiting)
                if now - message.sent_at >= retention:
                    self.forget(message)
                elif dead and message.receive_count >= dead[1]:
                    self.move(message, dead[0])
                else:
                    taken.append(self.fly(message, lane, now, visibility))
            if key in self.lanes:
                self.offer(key)
        return taken

    def fly(self, message, lane, now, visibility):
        message.receive_count += 1
        message.first_received_at = message.first_received_at or now
        message.received_at = now
        text = '%s %s %d' % (self.arn, message.id, message.receive_count)
        message.handle = 'AQEB' + base64.urlsafe_b64encode(text.encode()).decode()
        lane.in_flight += 1
        self.in_flight += 1
        self.set_timer(message, 'in flight', now + visibility)
        return message

    def move(self, message, to):
        """Dead letter. On FIFO the deduplication id becomes the message id, and the time starts anew:
        DG sqs-configure-dead-letter-queue-redrive."""
        self.forget(message)
        letter = Message(message.body, message.group, message.id if self.fifo else message.dedup, message.attributes,
                         message.trace)
        letter.id, letter.source_arn = message.id, self.arn
        letter.receive_count, letter.first_received_at = message.receive_count, message.first_received_at
        now = self.clock.now()
        to.put(letter, now, 0)
        if not self.fifo:
            letter.sent_at = message.sent_at
        to.accepted.append(self.record(letter, now, None, letter.id, letter.seq))

    def forget(self, message):
        flying = message.state == 'in flight'
        message.state = 'gone'
        self.messages.pop(message.id, None)
        key = self.lane_of(message)
        if flying:
            self.land(message)
        lane = self.lanes.get(key)
        if lane and not lane.head() and not lane.in_flight:
            del self.lanes[key]

    # By receipt handle

    def find(self, handle):
        """(message or None when it is deleted, whether the handle is of its last receive and that still lasts)."""
        self.expire()
        try:
            arn, message_id, count = base64.urlsafe_b64decode(handle[4:]).decode().split(' ')
        except ValueError:
            arn = None
        if arn != self.arn or not handle.startswith('AQEB'):
            raise Refusal('ReceiptHandleIsInvalid', handle)
        message = self.messages.get(message_id)
        return message, message is not None and message.state == 'in flight' and message.handle == handle

    def delete(self, handle):
        message, valid = self.find(handle)
        if message is None:
            return                                  # REC test_delete_message_with_deleted_receipt_handle
        if self.fifo and not valid:
            raise invalid(rules.EXPIRED_HANDLE, handle)
        if message.handle == handle:                # else "the request succeeds, but the message might not be deleted": M
            self.forget(message)
            self.wake()

    def change_visibility(self, handle, seconds):
        message, valid = self.find(handle)
        if message is None:
            raise invalid('Value {} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not '
                          'available for visibility timeout change.', handle)
        if self.fifo and not valid:
            raise invalid(rules.EXPIRED_HANDLE, handle)
        if not valid:
            raise Refusal('MessageNotInflight', handle)     # M
        now = self.clock.now()
        if now + seconds - message.received_at > rules.MAX_VISIBILITY:
            raise invalid('Value {} for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the '
                          'message is beyond the limit [43200 seconds]', seconds)
        self.set_timer(message, 'in flight', now + seconds)
        self.wake()

    def counts(self):
        self.expire()
        state = collections.Counter(m.state for m in self.messages.values())
        return {'visible': state['waiting'], 'in_flight': state['in flight'], 'delayed': state['delayed']}
