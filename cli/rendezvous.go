package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"weft"
	"weft/host"
	"weft/key"
	"weft/relay"
	"weft/rendezvous"
	"weft/stream"
	"weft/wire"
)

const rendezvousKeyFile = "rendezvous.key"

// What the relay forwards for networks that anybody may make, in bytes a second: of one, and of all together. It is meant
// for the minutes before there is a direct path, and for those that never find one: 20 Mbit/s is a film, and 200 Mbit/s a
// small machine's line.
const (
	guestNetworkRate = 20e6 / 8
	guestTotalRate   = 200e6 / 8
	guestNodes       = 16384
)

// rendezvousOptions are the flags of weft server that make it a rendezvous.
type rendezvousOptions struct {
	on, only bool
	networks []string
}

func (o *rendezvousOptions) add(f *pflag.FlagSet) {
	f.BoolVar(&o.on, "rendezvous", false, "also introduce the machines of networks made of two words (weft node --secret) to each other, and relay for them within bounds")
	f.BoolVar(&o.only, "rendezvous-only", false, "be that and nothing else: no members, no database, no tokens")
	f.StringArrayVar(&o.networks, "rendezvous-network", nil, "serve only this network of two words, and without bounds; repeat it for several (a node that is refused says its ID)")
}

// check finds what makes no sense.
func (o *rendezvousOptions) check(ranges bool) error {
	if o.only && ranges {
		return usagef("--rendezvous-only gives no addresses: leave --range and --range6 out, nodes choose theirs with --address")
	}
	for _, id := range o.networks {
		if b, err := hex.DecodeString(id); err != nil || len(b) != 16 {
			return usagef("--rendezvous-network: %q is no network's ID: it has 32 hexadecimal digits, and a node that is refused says it", id)
		}
	}
	o.on = o.on || o.only || len(o.networks) > 0
	return nil
}

// guests are those whom the relay beside the rendezvous serves.
func (o rendezvousOptions) guests(k key.SigningPrivate) relay.Guests {
	if !o.on {
		return relay.Guests{}
	}
	g := relay.Guests{Issuer: k.Public(), NetworkRate: guestNetworkRate, TotalRate: guestTotalRate, Nodes: guestNodes}
	if len(o.networks) > 0 {
		g.NetworkRate, g.TotalRate = 0, 0
	}
	return g
}

// server makes the rendezvous.
func (o rendezvousOptions) server(k key.SigningPrivate, self weft.Relay, log *slog.Logger) (*rendezvous.Server, error) {
	return rendezvous.New(rendezvous.Config{Signing: k, Relay: &self, Networks: o.networks, Log: log})
}

// handleRendezvous puts the rendezvous on a server's front, or what tells members that there is none.
func handleRendezvous(ctx context.Context, mux *http.ServeMux, s *rendezvous.Server) {
	if s == nil {
		mux.HandleFunc(wire.RendezvousPath, func(w http.ResponseWriter, _ *http.Request) {
			stream.WriteError(w, http.StatusNotFound, &weft.Error{Code: weft.CodeUnavailable,
				Message: "that weft server is no rendezvous for networks of two words: start it with --rendezvous, or another with --rendezvous-only"})
		})
		return
	}
	mux.Handle(wire.RendezvousPath, s)
	go s.Run(ctx)
}

// meetOnly runs a server that is a rendezvous with its relay and nothing else, until ctx ends.
func (a *app) meetOnly(ctx context.Context, o serverOptions, f *front) error {
	log := a.logger()
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return fmt.Errorf("the directory %s cannot be made: %w (choose another with --data)", o.dir, err)
	}
	relayKey, err := loadRelayKey(filepath.Join(o.dir, relayKeyFile))
	if err != nil {
		return err
	}
	signing, err := loadSigning(filepath.Join(o.dir, rendezvousKeyFile))
	if err != nil {
		return err
	}
	if err := f.certify(o.dir, o.url); err != nil {
		return err
	}
	rel, err := relay.New(relay.Config{Key: relayKey, Guests: o.meet.guests(signing), Logger: log})
	if err != nil {
		return err
	}
	meet, err := o.meet.server(signing, relayOf(embeddedName, relayKey.Public(), o.url, f.udpPort(), f.fingerprint), log)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(wire.RelayPath, rel)
	mux.HandleFunc("/", greet)
	handleRendezvous(ctx, mux, meet)
	if a.json {
		if err := a.printLine(serverReady{weft.SchemaVersion, weft.Version, o.url, f.tcp.Addr().String(), f.udpPort(), ""}); err != nil {
			return err
		}
	} else {
		at := strings.TrimPrefix(o.url, "https://")
		fmt.Fprintf(a.out, "On each machine, with a name and a long secret of your own:\n\n    weft node --secret NAME:SECRET --rendezvous %s\n\n", at)
	}
	f.tell(log, "weft server", o.url, o.stun, weft.Version)
	host.NotifyReady()
	return f.serve(ctx, mux, rel, log)
}

// loadSigning reads the key that a rendezvous signs relay tickets with, or makes it.
func loadSigning(path string) (key.SigningPrivate, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		k := key.NewSigning()
		return k, host.WriteFileAtomic(path, []byte(k.Reveal()+"\n"), 0o600)
	}
	if err != nil {
		return key.SigningPrivate{}, fmt.Errorf("the rendezvous's key: %w", err)
	}
	k, err := key.ParseSigning(trimLine(b))
	if err != nil {
		return k, fmt.Errorf("%s is damaged (%w): delete it, and the rendezvous gets a new key", path, err)
	}
	return k, nil
}
