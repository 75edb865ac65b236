// Package member keeps a stand-alone relay a member of its network: it joins with a token, says where the relay
// is found, and hears which nodes' tickets no longer count. What it needs to go on admitting nodes while the
// coordinator is away - the relay's keys, and the key that signs tickets - is in its directory.
package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/stream"
	"weft/wire"
)

const (
	stateFile = "relay.json"
	lockFile  = "lock"

	// retryFirst and retryLast bound the wait between tries, which doubles.
	retryFirst = 500 * time.Millisecond
	retryLast  = 30 * time.Second
	// beat is how often the connection is used at least, below the 60 s of common proxies; two beats without
	// any answer end it.
	beat = 20 * time.Second
)

// State is what a relay keeps. Open reads or makes it.
type State struct {
	Machine     key.MachinePrivate
	Relay       key.RelayPrivate
	Server      key.ServerPublic
	URL         string // of the server
	Fingerprint []byte
	Secret      []byte // of the token, until the server has welcomed the relay
	Signing     key.SigningPublic
	Revoked     []weft.NodeID

	dir    string
	unlock func() error
}

type document struct {
	Machine     string            `json:"machine_key"`
	Relay       string            `json:"relay_key"`
	Server      key.ServerPublic  `json:"server_key,omitzero"`
	URL         string            `json:"url,omitempty"`
	Fingerprint []byte            `json:"fingerprint,omitempty"`
	Secret      []byte            `json:"secret,omitempty"`
	Signing     key.SigningPublic `json:"signing,omitzero"`
	Revoked     []weft.NodeID     `json:"revoked,omitempty"`
}

// Open locks the directory, making it if need be, and reads the relay's state, making keys at the first time.
func Open(dir string) (*State, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the directory %s cannot be made: %w (choose another with --data)", dir, err)
	}
	unlock, err := host.LockFile(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("the directory %s: %w", dir, err)
	}
	s := &State{dir: dir, unlock: unlock}
	if err := s.load(); err != nil {
		unlock()
		return nil, err
	}
	return s, nil
}

func (s *State) load() error {
	path := filepath.Join(s.dir, stateFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		s.Machine, s.Relay = key.NewPrivate[key.Machine](), key.NewPrivate[key.Relay]()
		return s.save()
	}
	if err != nil {
		return err
	}
	var d document
	if err = json.Unmarshal(b, &d); err == nil {
		if s.Machine, err = key.ParsePrivate[key.Machine](d.Machine); err == nil {
			s.Relay, err = key.ParsePrivate[key.Relay](d.Relay)
		}
	}
	if err != nil {
		return fmt.Errorf("%s is damaged (%w): restore it from a backup, or delete it and join with a new token", path, err)
	}
	s.Server, s.URL, s.Fingerprint, s.Secret, s.Signing, s.Revoked = d.Server, d.URL, d.Fingerprint, d.Secret, d.Signing, d.Revoked
	return nil
}

func (s *State) save() error {
	b, err := json.MarshalIndent(document{
		Machine: s.Machine.Reveal(), Relay: s.Relay.Reveal(), Server: s.Server, URL: s.URL,
		Fingerprint: s.Fingerprint, Secret: s.Secret, Signing: s.Signing, Revoked: s.Revoked,
	}, "", "  ")
	if err != nil {
		return err
	}
	return host.WriteFileAtomic(filepath.Join(s.dir, stateFile), append(b, '\n'), 0o600)
}

// Close gives the directory up.
func (s *State) Close() { s.unlock() }

// Dir is the directory's path.
func (s *State) Dir() string { return s.dir }

// Join takes a token in, unless the relay is a member of that server's network already.
func (s *State) Join(t wire.Token) error {
	if !t.Relay {
		return &weft.Error{Code: weft.CodeBadToken,
			Message: "that token is for a node: make one for a relay with `weft admin key create --relay`"}
	}
	if !s.Signing.IsZero() {
		if s.Server == t.Server {
			return nil
		}
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(
			"this relay belongs to the network of %s: give it another directory with --data", s.URL)}
	}
	s.Server, s.URL, s.Fingerprint, s.Secret = t.Server, t.URL, t.Fingerprint, t.Secret[:]
	return s.save()
}

// Config says what the member tells of its relay and whom it tells what it hears.
type Config struct {
	Hello    wire.HelloRelay
	Logger   *slog.Logger
	Welcomed func(key.SigningPublic) // the server's word, each time it is heard
	Revoked  func([]weft.NodeID)     // all of them, each time
}

// Run keeps the connection to the server until ctx ends. It returns an error only when the server refuses the
// relay for good.
func (s *State) Run(ctx context.Context, cfg Config) error {
	wait := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := s.once(ctx, cfg)
		var refusal *weft.Error
		if errors.As(err, &refusal) && (refusal.Code.Permanent() || refusal.Code == weft.CodeWrongServer && s.Signing.IsZero()) {
			return refusal // a member waits for its own server to come back to that address
		}
		if ctx.Err() != nil {
			return nil
		}
		cfg.Logger.Warn("no connection to the server; the relay goes on with what it knows", "error", err)
		if time.Since(began) > retryLast {
			wait = retryFirst
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)):
			wait = min(2*wait, retryLast)
		}
	}
	return nil
}

func (s *State) once(ctx context.Context, cfg Config) error {
	conn, err := stream.DialControl(ctx, s.URL, s.Fingerprint, s.Machine, s.Server, wire.Hello{
		Version: weft.Version, OS: runtime.GOOS, Secret: s.Secret, Relay: &cfg.Hello,
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	ended := make(chan struct{})
	defer close(ended)
	go keepUp(conn, ended)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(2 * beat)); err != nil {
			return err
		}
		m, err := conn.Hear()
		if err != nil {
			return err
		}
		switch {
		case m.Welcome != nil:
			s.Secret, s.Signing = nil, m.Welcome.Signing
			if err := s.save(); err != nil {
				return err
			}
			cfg.Logger.Info("the relay is a member of the network", "server", s.URL)
			cfg.Welcomed(s.Signing)
		case m.Revoked != nil:
			s.Revoked = m.Revoked.Nodes
			if err := s.save(); err != nil {
				cfg.Logger.Error("the list of removed nodes was not stored; it is used all the same", "error", err)
			}
			cfg.Revoked(s.Revoked)
		case m.Error != nil:
			return m.Error
		}
	}
}

// keepUp asks for a sign of life every beat, until the connection ends.
func keepUp(conn *stream.Control, ended <-chan struct{}) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for n := uint64(1); ; n++ {
		select {
		case <-ended:
			return
		case <-tick.C:
			if conn.Say(wire.NodeMessage{Ping: &wire.Beat{N: n}}) != nil {
				conn.Close()
				return
			}
		}
	}
}
