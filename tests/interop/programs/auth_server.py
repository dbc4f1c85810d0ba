"""An auth server with sessions and a login page, `auth_server.py PORT`, in the manner of oauth2-proxy: the check, the
login page, the provider that it sends browsers to, and the callback. Run by tests/interop/forward_auth.rs."""
import hmac
import html
import secrets
import sys
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlsplit

PASSWORDS = {'alice': 'secret'}
# By session, by state and by code.
users, pages, codes = {}, {}, {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def reply(self, status, fields=(), body=''):
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        body = body.encode()
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def cookie(self, name):
        found = SimpleCookie(self.headers.get('cookie', '')).get(name)
        return found.value if found else ''

    def do_GET(self):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match url.path:
            case '/oauth2/auth':
                self.check()
            case '/oauth2/sign_in':
                # A page that a browser sends off by itself, as a password manager would.
                page = html.escape(query.get('rd', '/'))
                self.reply(200, [('content-type', 'text/html')], f'''<!doctype html><title>login</title>
                    <form method="post" action="/oauth2/sign_in"><input name="user" value="alice">
                    <input name="password" type="password" value="secret"><input name="rd" value="{page}"></form>
                    <script>document.forms[0].submit()</script>''')
            case '/oauth2/provider':
                # The provider knows the user already: it sends the browser back with a code.
                state = query.get('state', '')
                code = secrets.token_urlsafe()
                codes[code] = query.get('user', '')
                self.reply(302, [('location', f'/oauth2/callback?code={code}&state={quote(state)}')])
            case '/oauth2/callback':
                self.finish_login(query)
            case _:
                self.reply(404)

    def do_POST(self):
        if self.path != '/oauth2/sign_in':
            return self.reply(404)
        form = parse_qs(self.rfile.read(int(self.headers['content-length'])).decode())
        user, password, page = (form.get(name, [''])[0] for name in ('user', 'password', 'rd'))
        if not hmac.compare_digest(PASSWORDS.get(user, ''), password) or user not in PASSWORDS:
            return self.reply(403, body='wrong password')
        state = secrets.token_urlsafe()
        pages[state] = page
        target = f'/oauth2/provider?user={quote(user)}&state={quote(state)}'
        self.reply(302, [('set-cookie', f'state={state}; Path=/oauth2; HttpOnly'), ('location', target)])

    def finish_login(self, query):
        state, user = query.get('state', ''), codes.pop(query.get('code', ''), None)
        page = pages.pop(state, None)
        if user is None or page is None or not hmac.compare_digest(state, self.cookie('state')):
            return self.reply(403, body='the state is not that of this browser')
        session = secrets.token_urlsafe()
        users[session] = user
        fields = [('set-cookie', f'session={session}; Path=/; HttpOnly; SameSite=Lax'),
                  ('set-cookie', 'state=; Path=/oauth2; Max-Age=0'), ('location', page)]
        self.reply(302, fields)

    def check(self):
        user = users.get(self.cookie('session'))
        if user is None:
            page = quote(self.headers['x-forwarded-uri'], safe='')
            fields = [('location', f'/oauth2/sign_in?rd={page}'), ('cache-control', 'no-store')]
            return self.reply(302, fields, 'log in first')
        seen = ' '.join(self.headers[name] for name in ('x-forwarded-method', 'x-forwarded-proto', 'x-forwarded-uri'))
        renewed = f'checks={secrets.token_hex(4)}; Path=/; HttpOnly'
        self.reply(202, [('x-auth-request-user', user), ('x-auth-request-email', f'{user}@a.test'),
                         ('x-checked', seen), ('set-cookie', renewed)])

    def log_message(self, *arguments):
        print(self.command, self.path, *arguments, flush=True)


ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
