package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"weft"
	"weft/control"
	"weft/control/signin"
	"weft/wire"
)

// signInOptions are the flags of a server where people sign in.
type signInOptions struct {
	issuer, client, secretFile, groups string
	lasts                              time.Duration
	secret                             string
}

// signInLasts is for how long a machine is a member after somebody has signed in for it, unless told otherwise: 180 days, as
// users of other overlays are used to.
const signInLasts = 180 * 24 * time.Hour

func (o *signInOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.issuer, "oidc-issuer", "", "have people sign in for their machines at this provider of OpenID Connect, https://...")
	f.StringVar(&o.client, "oidc-client", "", "this server's client ID there; its redirect URI is URL/signin/callback")
	f.StringVar(&o.secretFile, "oidc-secret-file", "", "file with the client's secret")
	f.StringVar(&o.groups, "oidc-groups", "groups", "the claim that names people's groups")
	f.DurationVar(&o.lasts, "sign-in-for", signInLasts, "for how long a machine is a member then; 0s for ever")
}

func (o *signInOptions) on() bool { return o.issuer != "" }

// check reads the secret.
func (o *signInOptions) check() error {
	switch u, err := url.Parse(o.issuer); {
	case !o.on() && (o.client != "" || o.secretFile != ""):
		return usagef("--oidc-client and --oidc-secret-file go with --oidc-issuer")
	case !o.on():
		return nil
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		return usagef("--oidc-issuer takes the provider's URL, as it writes it itself, for example https://accounts.example.org")
	case o.client == "" || o.secretFile == "":
		return usagef("--oidc-issuer needs --oidc-client and --oidc-secret-file: the provider gives them when this server is registered there")
	case o.lasts < 0:
		return usagef("--sign-in-for must not be below zero")
	}
	b, err := os.ReadFile(o.secretFile)
	if err != nil {
		return fmt.Errorf("the client's secret cannot be read: %w", err)
	}
	if o.secret = strings.TrimSpace(string(b)); o.secret == "" {
		return fmt.Errorf("%s has no secret in it", o.secretFile)
	}
	return nil
}

// serve adds the pages, and the token that holds no secret.
func (o *signInOptions) serve(mux *http.ServeMux, srv *control.Server, at string, log *slog.Logger) {
	token, ok := srv.SignInToken()
	if !ok {
		return
	}
	mux.Handle(signin.Path, signin.New(signin.Config{
		Issuer: o.issuer, ClientID: o.client, Secret: o.secret, Groups: o.groups, URL: at, Door: srv, Log: log,
	}))
	mux.HandleFunc("GET "+wire.TokenPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, token)
	})
}

// askPatience is how long a server has to tell its token.
const askPatience = 15 * time.Second

// askForToken has a server tell the token of those who sign in. The key in it is believed because of the certificate, so
// that has to be good.
func askForToken(ctx context.Context, server string) (string, error) {
	server = strings.TrimSuffix(server, "/")
	if err := wire.CheckServerURL(server); err != nil {
		return "", usagef("%w", err)
	}
	if !strings.HasPrefix(server, "https:") {
		return "", usagef("by http anybody on the way could answer in the server's place: give https://, or the token that `weft admin status` shows on the server")
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+wire.TokenPath, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("the server could not be asked for its token (where its certificate is its own, give the token that `weft admin status` shows there): %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxHidden))
	if err != nil {
		return "", fmt.Errorf("the server's token: %w", err)
	}
	t, err := wire.ParseToken(string(b))
	if resp.StatusCode != http.StatusOK || err != nil || !t.SignIn {
		return "", &weft.Error{Code: weft.CodeBadToken, Message: server + " is no weft server where people sign in: get a token there with `weft admin key create` and say `weft up TOKEN`"}
	}
	return t.String(), nil
}

// signInLook is how often it is looked whether somebody has signed in.
const signInLook = 300 * time.Millisecond

// awaitSignIn shows where to sign in, and waits until that has happened.
func (a *app) awaitSignIn(ctx context.Context) error {
	tick := time.NewTicker(signInLook)
	defer tick.Stop()
	shown := ""
	for {
		s, err := a.client().Status(ctx)
		switch {
		case err != nil:
			return err
		case s.SignIn.URL != "" && s.SignIn.URL != shown:
			shown = s.SignIn.URL
			fmt.Fprintf(a.out, "To bring this machine into the network, open\n\n    %s\n\nin a browser and sign in. The page shows this code if it is about this machine:\n\n    %s\n\n",
				s.SignIn.URL, s.SignIn.Code)
			if err := printQR(a.out, s.SignIn.URL); err != nil {
				return err
			}
		case s.SignIn.URL == "" && s.State == weft.Running:
			return nil
		case s.SignIn.URL == "" && s.State == weft.Refused:
			return fmt.Errorf("%s", strings.Join(s.Problems, "; "))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
