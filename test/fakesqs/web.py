"""HTTP/1.1 as far as it is needed: keep-alive, Expect: 100-continue, Content-Length; and ways to behave badly."""
import asyncio
import email.utils
import itertools
import socket
import struct
import time
from http import HTTPStatus

LARGEST_BODY = 64 * 1024 * 1024


class Request:
    __slots__ = ('method', 'target', 'headers', 'body', 'connection', 'reused', 'secure', '_reader')

    def __init__(self, method, target, headers, connection, reused, secure, reader):
        self.method, self.target, self.headers = method, target, headers        # names of headers in lower case
        self.connection, self.reused, self._reader = connection, reused, reader
        self.secure = secure
        self.body = b''

    def header(self, name):
        return next((value for key, value in self.headers if key == name), None)

    def gone(self):
        """The client hung up."""
        return self._reader.at_eof()


class Response:
    __slots__ = ('status', 'body', 'headers', 'date', 'drop', 'close', 'rate', 'cut')

    def __init__(self, status, body=b'', headers=()):
        self.status, self.body, self.headers = status, body, list(headers)
        self.date = 0               # s that the Date header is wrong by
        self.drop = None            # 'close' or 'reset': no answer at all
        self.close = False          # close the connection afterwards, without saying so before
        self.rate = None            # bytes of the body per second
        self.cut = None             # end the connection after so many bytes of the body


class Server:
    """answer(request) is awaited for each request, and returns a Response."""

    def __init__(self, answer, clock):
        self.answer, self.clock = answer, clock
        self.numbers = itertools.count(1)
        self.continues = True       # says 100 Continue when asked to
        self.date = (0, '')

    async def start(self, port, ssl=None):
        server = await asyncio.start_server(self.serve, '127.0.0.1', port, ssl=ssl, backlog=512)
        return server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        number = next(self.numbers)
        try:
            writer.get_extra_info('socket').setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reused = False
            while (request := await self.read(reader, writer, number, reused)) is not None:
                response = await self.answer(request)
                if not await self.write(writer, request, response):
                    break
                reused = True
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass                    # the client left, or does not speak HTTP
        finally:
            writer.close()

    async def read(self, reader, writer, number, reused):
        # Clients that write head and body separately would wait for a late acknowledgement.
        if hasattr(socket, 'TCP_QUICKACK'):
            writer.get_extra_info('socket').setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        try:
            head = await reader.readuntil(b'\r\n\r\n')
        except asyncio.IncompleteReadError:
            return None
        lines = head[:-4].decode('latin-1').split('\r\n')
        method, target, _ = lines[0].split(' ')
        headers = []
        for line in lines[1:]:
            name, value = line.split(':', 1)
            headers.append((name.lower(), value.strip(' \t')))
        request = Request(method, target, headers, number, reused,
                          writer.get_extra_info('ssl_object') is not None, reader)
        length = int(request.header('content-length') or 0)
        if request.header('transfer-encoding') or length > LARGEST_BODY:
            writer.write(b'HTTP/1.1 411 Length Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
            return None
        if length:
            if self.continues and (request.header('expect') or '').lower() == '100-continue':
                writer.write(b'HTTP/1.1 100 Continue\r\n\r\n')
            request.body = await reader.readexactly(length)
        return request

    def date_header(self, shift):
        second = int(self.clock.wall() + shift)
        if self.date[0] != second:
            self.date = second, email.utils.formatdate(second, usegmt=True)
        return self.date[1]

    async def write(self, writer, request, response):
        if response.drop:
            if response.drop == 'reset':
                writer.get_extra_info('socket').setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                writer.transport.abort()
            return False
        try:
            phrase = HTTPStatus(response.status).phrase
        except ValueError:
            phrase = 'Unknown'
        body = b'' if request.method == 'HEAD' else response.body
        lines = ['HTTP/1.1 %d %s' % (response.status, phrase), 'Date: ' + self.date_header(response.date)]
        lines += ['%s: %s' % header for header in response.headers]
        lines.append('Content-Length: %d\r\n\r\n' % len(body))
        head = '\r\n'.join(lines).encode('latin-1')
        if response.cut is not None:
            body = body[:response.cut]
        if response.rate:
            writer.write(head)
            step = max(1, int(response.rate / 10))
            for start in range(0, len(body), step):
                if writer.is_closing() or request.gone():
                    return False
                writer.write(body[start:start + step])
                await asyncio.sleep(step / response.rate)
        else:
            writer.write(head + body)
        await writer.drain()
        return not response.close and response.cut is None and (request.header('connection') or '').lower() != 'close'
