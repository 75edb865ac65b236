package cli

import (
	"context"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"weft"
	"weft/host"
	"weft/key"
	"weft/relay"
	"weft/relay/member"
	"weft/wire"
)

func (a *app) relayCommand() *cobra.Command {
	var dir, token, listen, stun, url, name string
	c := &cobra.Command{
		Use:   "relay",
		Short: "Run a relay and STUN responder at another site",
		Long: `Run a stand-alone relay, in the foreground: it joins its network with a token of weft admin key create
--relay, and goes on with what it knows while the server is away. It needs one TCP and one UDP port; with the UDP
port behind that one, machines find out more about the NATs that they are behind.

Its clock must be right to some hours: what the server signs for nodes holds for a day.

Exit code 0 when it was told to end (SIGTERM, SIGINT), 1 when it cannot start or the server refuses it. A server
that is not reached is tried again, for as long as it takes.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			text, err := a.readToken(token, c.Flags().Changed("token"))
			if err != nil {
				return err
			}
			return advise(a.relay(c.Context(), dir, text, listen, stun, url, name), "--data")
		},
	}
	f := c.Flags()
	f.StringVar(&dir, "data", "/var/lib/weft-relay", "directory of keys and certificate")
	f.StringVar(&token, "token", "", tokenHelp)
	f.StringVar(&listen, "listen", ":443", "TCP address for the relay's stream")
	f.StringVar(&stun, "stun", ":3478", "UDP address for STUN and relay; STUN is answered at the next port too")
	f.StringVar(&url, "url", "", "where machines reach this relay, https://host[:port] (default by this machine's address)")
	f.StringVar(&name, "name", "", "name of the relay (default the host's)")
	return c
}

// relay runs a stand-alone relay until ctx ends or the server refuses it.
func (a *app) relay(ctx context.Context, dir, token, listen, stunAddr, at, name string) error {
	log := a.logger()
	front, err := listenFront(listen, stunAddr)
	if err != nil {
		return err
	}
	defer front.close()
	if at == "" {
		at = guessURL(front.tcpPort())
	}
	if err := wire.CheckServerURL(at); err != nil {
		return usagef("--url: %w", err)
	}
	state, err := member.Open(dir)
	if err != nil {
		return err
	}
	defer state.Close()
	if token != "" {
		t, err := wire.ParseToken(token)
		if err != nil {
			return err
		}
		if err := state.Join(t); err != nil {
			return err
		}
	} else if state.URL == "" {
		return usagef("this relay belongs to no network yet: give it a token (on the server: weft admin key create --relay)")
	}
	if err := front.certify(dir, at); err != nil {
		return err
	}
	if name == "" {
		name, _ = os.Hostname()
	}
	self := relayOf(weft.CleanName(name), state.Relay.Public(), at, front.udpPort(), front.fingerprint)
	rel, err := relay.New(relay.Config{Key: state.Relay, Issuer: state.Signing, Logger: log})
	if err != nil {
		return err
	}
	rel.SetRevoked(state.Revoked)

	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		cancel(state.Run(ctx, member.Config{
			Hello: wire.HelloRelay{
				Key: self.Key, Name: self.Name, URL: self.URL, UDP: self.UDP, UDPPort: self.UDPPort, Fingerprint: self.Fingerprint,
			},
			Logger: log, Revoked: rel.SetRevoked,
			Welcomed: func(k key.SigningPublic) { rel.SetIssuer(k) },
		}))
	}()
	mux := http.NewServeMux()
	mux.Handle(wire.RelayPath, rel)
	front.tell(log, "weft relay", at, stunAddr, weft.Version)
	host.NotifyReady()
	if err := front.serve(ctx, mux, rel, log); err != nil {
		return err
	}
	if outer.Err() != nil {
		return nil // somebody ended it
	}
	return context.Cause(ctx) // the server refused it
}
