package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"weft"
	"weft/control"
	"weft/host"
	"weft/key"
	"weft/relay"
	"weft/rendezvous"
	"weft/wire"
)

const (
	// firstTokenLife is how long the join token lives that the first start prints.
	firstTokenLife = 24 * time.Hour

	relayKeyFile = "relay.key"
	embeddedName = "home"
)

// serverOptions are the flags of weft server.
type serverOptions struct {
	dir, listen, stun, url string
	range4, range6         string
	meet                   rendezvousOptions
	approve                bool
	signIn                 signInOptions
}

func (a *app) serverCommand() *cobra.Command {
	var o serverOptions
	c := &cobra.Command{
		Use:   "server",
		Short: "Run the coordination server, with relay and STUN",
		Long: `Run the coordination server, with an embedded relay and STUN responder, in the foreground. The first start
makes keys, a certificate and a database in DIR, and prints one line to paste on a machine.

The TCP port takes TLS and plain HTTP alike, so a reverse proxy may stand in front. Machines know the server
by the key in their token; keep DIR safe, and a backup of it. With --json it prints one line when it is ready.

With --rendezvous-only there are no accounts: machines that are started with the same two words (weft node --secret) find
each other here, whoever they belong to, unless --rendezvous-network names those that may. With --rendezvous a
coordination server is that as well.

Exit code 0 when it was told to end (SIGTERM, SIGINT), 1 when it cannot start.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return advise(a.server(c.Context(), o), "--data") },
	}
	f := c.Flags()
	f.StringVar(&o.dir, "data", "/var/lib/weft-server", "directory of keys, certificate and database")
	f.StringVar(&o.listen, "listen", ":443", "TCP address for control and relay")
	f.StringVar(&o.stun, "stun", ":3478", "UDP address for STUN and relay; STUN is answered at the next port too")
	f.StringVar(&o.url, "url", "", "where machines reach this server, https://host[:port] (default by this machine's address)")
	f.StringVar(&o.range4, "range", "", "IPv4 range of the overlay, at the first start (default 100.64.0.0/10)")
	f.StringVar(&o.range6, "range6", "", "IPv6 range of the overlay, at the first start (default a random ULA /48)")
	o.meet.add(f)
	f.BoolVar(&o.approve, "approve", false, "have machines that join wait until an administrator approves them (weft admin node approve)")
	o.signIn.add(f)
	return c
}

// server runs the roles of one server until ctx ends.
func (a *app) server(ctx context.Context, o serverOptions) error {
	log := a.logger()
	ranges, err := parseRanges(o.range4, o.range6)
	if err != nil {
		return err
	}
	if err := o.meet.check(o.range4 != "" || o.range6 != ""); err != nil {
		return err
	}
	front, err := listenFront(o.listen, o.stun)
	if err != nil {
		return err
	}
	defer front.close()
	if o.url == "" {
		o.url = guessURL(front.tcpPort())
	}
	if err := wire.CheckServerURL(o.url); err != nil {
		return usagef("--url: %w", err)
	}
	if err := o.signIn.check(); err != nil {
		return err
	}
	if o.meet.only {
		return a.meetOnly(ctx, o, front)
	}

	dir, err := control.OpenDir(ctx, o.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	relayKey, err := loadRelayKey(filepath.Join(o.dir, relayKeyFile))
	if err != nil {
		return err
	}
	if err := front.certify(o.dir, o.url); err != nil {
		return err
	}
	self := relayOf(embeddedName, relayKey.Public(), o.url, front.udpPort(), front.fingerprint)
	srv, err := control.New(ctx, control.Config{
		Keys: dir.Keys, Store: dir.Store, Dir: dir.Path, URL: o.url, Fingerprint: front.fingerprint,
		Relay: &self, IPv4: ranges[0], IPv6: ranges[1], Approve: o.approve, SignIn: o.signIn.on(), SignInFor: o.signIn.lasts, Log: log,
	})
	if err != nil {
		return err
	}
	defer srv.Close()
	var guests key.SigningPrivate
	var meet *rendezvous.Server
	if o.meet.on {
		if guests, err = loadSigning(filepath.Join(o.dir, rendezvousKeyFile)); err != nil {
			return err
		}
		if meet, err = o.meet.server(guests, self, log); err != nil {
			return err
		}
	}
	rel, err := relay.New(relay.Config{Key: relayKey, Issuer: srv.Signing(), Guests: o.meet.guests(guests), Logger: log})
	if err != nil {
		return err
	}
	srv.OnRevoked(rel.SetRevoked)

	socket, err := control.ListenAdmin(filepath.Join(o.dir, adminSocket))
	if err != nil {
		return err
	}
	defer socket.Close()
	go (&http.Server{Handler: srv.AdminHandler(), ReadHeaderTimeout: headTimeout}).Serve(socket)

	mux := http.NewServeMux()
	mux.Handle(wire.ControlPath, srv)
	mux.Handle(wire.RelayPath, rel)
	mux.HandleFunc("/", greet)
	o.signIn.serve(mux, srv, o.url, log)
	handleRendezvous(ctx, mux, meet)
	if err := a.invite(ctx, srv, o, front); err != nil {
		return err
	}
	front.tell(log, "weft server", o.url, o.stun, weft.Version)
	host.NotifyReady()
	return front.serve(ctx, mux, rel, log)
}

// invite prints the line to paste, when nobody can have joined yet; as JSON, a line of where the server is.
func (a *app) invite(ctx context.Context, srv *control.Server, o serverOptions, f *front) error {
	var text string
	if !srv.Invited() {
		_, token, err := srv.CreateKey(ctx, control.KeyRequest{Reusable: true, Lifetime: firstTokenLife})
		if err != nil {
			return fmt.Errorf("making the first join token: %w", err)
		}
		text = token.String()
	}
	if a.json {
		return a.printLine(serverReady{weft.SchemaVersion, weft.Version, o.url, f.tcp.Addr().String(), f.udpPort(), text})
	}
	if text == "" {
		return nil
	}
	fmt.Fprintf(a.out, "On each machine, within %s (more with `weft admin --data %s key create`):\n\n    weft node --token %s\n\n",
		age(firstTokenLife), o.dir, text)
	fmt.Fprintf(a.out, "No policy is set. Until one is, %s.\nMachines that join with this token belong to no user, and count as one owner's. To change that: `weft admin --data %s policy edit`.\n\n",
		withoutPolicy, o.dir)
	return nil
}

// serverReady is what weft server --json prints when it is ready.
type serverReady struct {
	Schema  int    `json:"schema_version"`
	Version string `json:"version"`
	URL     string `json:"url"`
	TCP     string `json:"tcp"` // host:port
	UDPPort uint16 `json:"udp_port"`
	Token   string `json:"token,omitempty"` // of the first start: a secret
}

// greet is what a person with a browser sees.
func greet(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintln(w, "This is a weft server. Machines join it with: weft node --token TOKEN")
}

func parseRanges(v4, v6 string) (out [2]netip.Prefix, err error) {
	for i, s := range []string{v4, v6} {
		if s == "" {
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4() != (i == 0) {
			return out, usagef("%q is no range: --range takes IPv4 (100.64.0.0/10), --range6 takes IPv6 (fd12:3456:789a::/48)", s)
		}
		out[i] = p.Masked()
	}
	return out, nil
}

// relayOf describes a relay as the network's map has it.
func relayOf(name string, k key.RelayPublic, at string, udpPort uint16, fingerprint []byte) weft.Relay {
	r := weft.Relay{ID: 1, Name: name, Key: k, URL: at, UDPPort: udpPort, Fingerprint: fingerprint}
	if u, err := url.Parse(at); err == nil {
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
			r.UDP = []netip.AddrPort{netip.AddrPortFrom(ip, udpPort)}
		}
	}
	return r
}

// guessURL is where this machine is probably reached: by the address that it talks to the world with.
func guessURL(port uint16) string {
	at := "localhost"
	// No packet is sent: connecting a UDP socket only looks up the route (192.0.2.1 is RFC 5737's).
	if c, err := net.Dial("udp", "192.0.2.1:9"); err == nil {
		at = c.LocalAddr().(*net.UDPAddr).IP.String()
		c.Close()
	}
	if port != 443 {
		at = net.JoinHostPort(at, strconv.Itoa(int(port)))
	}
	return "https://" + at
}

// loadRelayKey reads a relay's key, or makes it.
func loadRelayKey(path string) (key.RelayPrivate, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		k := key.NewPrivate[key.Relay]()
		return k, host.WriteFileAtomic(path, []byte(k.Reveal()+"\n"), 0o600)
	}
	if err != nil {
		return key.RelayPrivate{}, fmt.Errorf("the relay's key: %w", err)
	}
	k, err := key.ParsePrivate[key.Relay](trimLine(b))
	if err != nil {
		return k, fmt.Errorf("%s is damaged (%w): delete it, and the relay gets a new key", path, err)
	}
	return k, nil
}

func trimLine(b []byte) string {
	for len(b) > 0 && (b[len(b)-1] == '\n' || b[len(b)-1] == '\r') {
		b = b[:len(b)-1]
	}
	return string(b)
}
