// A third-party OpenID Connect provider for one client, with a form that accepts any name.
// Arguments: the folder of its package, the client's ID, its secret (empty: public), its page, the lifetime of a
// token in seconds. It prints its issuer. POST /lock?sub=NAME locks an account, POST /roles?sub=NAME&roles=A,B
// changes its roles.
import { createRequire } from 'node:module';
import { createServer } from 'node:http';

const [modules, clientId, clientSecret, page, seconds] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { Provider } = await import(require.resolve('oidc-provider'));

const locked = new Set();
const roles = new Map();
const server = createServer();
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: [{
    client_id: clientId,
    ...(clientSecret ? { client_secret: clientSecret } : { token_endpoint_auth_method: 'none' }),
    redirect_uris: [`${page}/login/oidc/callback`],
    post_logout_redirect_uris: [`${page}/login`],
    grant_types: ['authorization_code', 'refresh_token'],
  }],
  claims: { openid: ['sub', 'preferred_username', 'roles'], profile: ['name'] },
  conformIdTokenClaims: false,
  pkce: { required: () => true, methods: ['S256'] },
  ttl: { AccessToken: Number(seconds), IdToken: Number(seconds), RefreshToken: 3600 },
  rotateRefreshToken: true,
  features: { devInteractions: { enabled: true } },
  cookies: { keys: ['a key of a test'] },
  issueRefreshToken: async () => true,
  async findAccount(_ctx, sub) {
    if (locked.has(sub)) return undefined;
    return {
      accountId: sub,
      claims: async () => ({ sub, preferred_username: sub, roles: roles.get(sub) ?? [sub] }),
    };
  },
});
const answer = provider.callback();
server.on('request', (request, response) => {
  const url = new URL(request.url, issuer);
  if (request.method === 'POST' && url.pathname === '/lock') locked.add(url.searchParams.get('sub'));
  else if (request.method === 'POST' && url.pathname === '/roles') {
    roles.set(url.searchParams.get('sub'), url.searchParams.get('roles').split(','));
  } else {
    answer(request, response);
    return;
  }
  response.end('ok\n');
});
console.log(issuer);
