package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"weft"
	"weft/engine"
	"weft/host"
	"weft/key"
	"weft/rendezvous"
	"weft/wire"
)

// Files of the state directory, all of mode 0600.
const (
	identityFile = "identity.json"
	mapFile      = "map.json"
	settingsFile = "settings.json"
	lockFile     = "lock"
)

// Identity is what makes a machine the same node tomorrow.
type Identity struct {
	Machine  key.MachinePrivate
	Node     key.NodePrivate
	Rotation uint32 // how many node keys there were before this one
	// Server, URL and Fingerprint are of the token that joined it; URL is empty before.
	Server      key.ServerPublic
	URL         string
	Fingerprint []byte
	Name        string // as wished for; the map has the name given
	// Secret is kept between reading the token and the server's welcome, so that a join that was cut short
	// goes on by itself.
	Secret []byte
	// Network is what two words made, of a machine that joined by them; then URL is where its rendezvous is, Server is
	// nobody's, and Address is the overlay address that was asked for, invalid if any will do.
	Network rendezvous.Network
	Address netip.Prefix
}

// Joined reports whether the machine belongs to a network, or is on its way into one.
func (i Identity) Joined() bool { return i.URL != "" }

// identityDoc is Identity's form in its file: the only document that private keys are written to.
type identityDoc struct {
	Machine     string           `json:"machine_key"`
	Node        string           `json:"node_key"`
	Rotation    uint32           `json:"rotation,omitempty"`
	Server      key.ServerPublic `json:"server_key"`
	URL         string           `json:"url"`
	Fingerprint []byte           `json:"fingerprint,omitempty"`
	Name        string           `json:"name"`
	Secret      []byte           `json:"secret,omitempty"`
	Network     string           `json:"network,omitempty"`
	Shared      string           `json:"network_secret,omitempty"`
	Address     netip.Prefix     `json:"address,omitzero"`
}

// Settings are what weft set changes. The zero value is the default.
type Settings struct {
	Down      bool             `json:"down"`       // weft down was said
	Port      uint16           `json:"port"`       // of the UDP sockets; 0 is any free one
	Endpoints []netip.AddrPort `json:"endpoints"`  // where the person says that the node is reachable
	NoDNS     bool             `json:"no_dns"`     // leave the system's resolver alone
	NoPortMap bool             `json:"no_portmap"` // do not ask the router to pass the port on
	MTU       int              `json:"mtu"`        // of the overlay's interface, in bytes; 0 is engine.MTU
	// Bond is one of BondModes, BondPeers the same for peers by name, where it is another; "" is the first. Redundant are
	// the packets that go by two paths where the mode is aggregate, too; Congestion is one of BondControls.
	Bond       string            `json:"bond"`
	BondPeers  map[string]string `json:"bond_peers"`
	Redundant  []engine.BondRule `json:"redundant"`
	Congestion string            `json:"congestion"`
	// TCP is "off", "all" or names of interfaces with commas between, at which TCP takes the place of UDP; "" is where UDP
	// does not get through.
	TCP string `json:"tcp"`
	RouteSettings
	// Portal is the end of a portal that this node is, if it is one; weft portal changes it.
	Portal PortalRequest `json:"portal,omitzero"`
	// Kept is the port that was free when any was asked for: firewalls and NATs have learnt it. The daemon's own.
	Kept uint16 `json:"kept_port,omitempty"`
}

// Equal compares every field that is for somebody to set.
func (s Settings) Equal(o Settings) bool {
	return s.sameNetwork(o) && s.sameBond(o) && s.sameRoutes(o.RouteSettings)
}

// sameNetwork compares what takes a new start of the network to change.
func (s Settings) sameNetwork(o Settings) bool {
	return s.Down == o.Down && s.Port == o.Port && s.NoDNS == o.NoDNS && s.NoPortMap == o.NoPortMap &&
		s.MTU == o.MTU && s.TCP == o.TCP && slices.Equal(s.Endpoints, o.Endpoints)
}

// State is the state directory: one daemon's at a time, by a lock that goes with the process.
// It is safe for concurrent use.
type State struct {
	dir    string
	unlock func() error
	keeper *keeper // of the map's file

	mu       sync.Mutex
	identity Identity
	settings Settings
	netmap   *weft.NetworkMap
}

// OpenState locks the directory, making it if need be, and reads what is there. A damaged map is done without;
// a damaged identity is an error that says so, since a new one would be another node.
func OpenState(dir string, log *slog.Logger) (*State, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the state directory %s cannot be made: %w (choose another with --state)", dir, err)
	}
	unlock, err := host.LockFile(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("the state directory %s: %w", dir, err)
	}
	s := &State{dir: dir, unlock: unlock}
	if err := s.load(log); err != nil {
		unlock()
		return nil, err
	}
	s.keeper = newKeeper(log, func(m *weft.NetworkMap) error { return s.write(mapFile, m) })
	return s, nil
}

func (s *State) load(log *slog.Logger) error {
	var doc identityDoc
	switch err := s.read(identityFile, &doc); {
	case errors.Is(err, fs.ErrNotExist):
		s.identity = Identity{Machine: key.NewPrivate[key.Machine](), Node: key.NewPrivate[key.Node]()}
		if err := s.writeIdentity(s.identity); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("%w; restore it from a backup, or delete the directory and join anew", err)
	default:
		machine, err := key.ParsePrivate[key.Machine](doc.Machine)
		if err == nil {
			s.identity.Machine = machine
			s.identity.Node, err = key.ParsePrivate[key.Node](doc.Node)
		}
		if err != nil {
			return fmt.Errorf("%s holds no usable keys (%w); restore it from a backup, or delete the directory and join anew",
				filepath.Join(s.dir, identityFile), err)
		}
		s.identity.Server, s.identity.URL, s.identity.Fingerprint = doc.Server, doc.URL, doc.Fingerprint
		s.identity.Name, s.identity.Secret, s.identity.Rotation = doc.Name, doc.Secret, doc.Rotation
		if doc.Network != "" {
			shared, err := key.ParseShared(doc.Shared)
			if err == nil {
				s.identity.Network, err = rendezvous.NewNetwork(doc.Network, shared)
			}
			if err != nil {
				return fmt.Errorf("%s does not hold the secret of the network %s (%w); restore it from a backup, or delete the directory and start with --secret",
					filepath.Join(s.dir, identityFile), doc.Network, err)
			}
			s.identity.Address = doc.Address
		}
	}
	if err := s.read(settingsFile, &s.settings); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; correct or delete that file", err)
	}
	var m weft.NetworkMap
	switch err := s.read(mapFile, &m); {
	case err == nil && m.Self.ID != 0:
		s.netmap = &m
	case err == nil:
		log.Warn("the last map of the network is empty; waiting for the server's")
	case !errors.Is(err, fs.ErrNotExist):
		log.Warn("the last map of the network cannot be read; waiting for the server's", "error", err)
	}
	return nil
}

// Close writes what is not written yet, and gives the directory up.
func (s *State) Close() {
	s.keeper.close()
	s.unlock()
}

// Dir is the directory's path.
func (s *State) Dir() string { return s.dir }

// Identity returns the identity.
func (s *State) Identity() Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.identity
}

// Settings returns the settings.
func (s *State) Settings() Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings
}

// Map returns the last map, or nil.
func (s *State) Map() *weft.NetworkMap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.netmap
}

// Join takes a token in: from then on the machine is on its way into that network.
func (s *State) Join(t wire.Token, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.identity
	id.Server, id.URL, id.Fingerprint, id.Name, id.Secret = t.Server, t.URL, t.Fingerprint, name, t.Secret[:]
	if t.SignIn {
		id.Secret = nil
	}
	id.Network, id.Address = rendezvous.Network{}, netip.Prefix{}
	return s.writeIdentity(id)
}

// Meet makes the machine a member of a network of two words. The map is forgotten where it is another network's, or this
// machine is to have another address.
func (s *State) Meet(w Words, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.netmap; m != nil && (s.identity.Network.Public != w.Network.Public || w.Address.IsValid() && !slices.Contains(m.Self.Addrs, w.Address.Addr())) {
		if err := s.forgetMap(); err != nil {
			return err
		}
	}
	id := s.identity
	id.Server, id.Fingerprint, id.Secret = key.ServerPublic{}, nil, nil
	id.URL, id.Name, id.Network, id.Address = w.URL, name, w.Network, w.Address
	return s.writeIdentity(id)
}

// Welcomed forgets the token's secret: the server knows the machine by its key from now on.
func (s *State) Welcomed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.identity.Secret == nil {
		return nil
	}
	id := s.identity
	id.Secret = nil
	return s.writeIdentity(id)
}

// Rotate makes another node key.
func (s *State) Rotate() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.identity
	id.Node = key.NewPrivate[key.Node]()
	id.Rotation++
	return s.writeIdentity(id)
}

// ForgetMap forgets the map of a network that this machine is no longer in: nothing is started from it again, and
// a token lets the machine in anew.
func (s *State) ForgetMap() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forgetMap()
}

func (s *State) forgetMap() error {
	s.netmap = nil
	if err := s.keeper.drop(func() error { return os.Remove(filepath.Join(s.dir, mapFile)) }); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the map of the network that was left: %w", err)
	}
	return nil
}

// Leave forgets the network, keys and map: what joins next is a new node.
func (s *State) Leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.forgetMap(); err != nil {
		return err
	}
	return s.writeIdentity(Identity{Machine: key.NewPrivate[key.Machine](), Node: key.NewPrivate[key.Node]()})
}

// SetSettings stores the settings.
func (s *State) SetSettings(v Settings) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(settingsFile, v); err != nil {
		return err
	}
	s.settings = v
	return nil
}

// SetMap takes the map in. It is in its file soon, and at the latest after Close.
func (s *State) SetMap(m *weft.NetworkMap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.netmap = m
	s.keeper.put(m)
}

// writeIdentity stores the identity, and takes it as the current one only when it is stored.
func (s *State) writeIdentity(id Identity) error {
	doc := identityDoc{
		Machine: id.Machine.Reveal(), Node: id.Node.Reveal(), Rotation: id.Rotation, Server: id.Server,
		URL: id.URL, Fingerprint: id.Fingerprint, Name: id.Name, Secret: id.Secret,
	}
	if id.Network.Name != "" {
		doc.Network, doc.Shared, doc.Address = id.Network.Name, id.Network.Shared.Reveal(), id.Address
	}
	err := s.write(identityFile, doc)
	if err == nil {
		s.identity = id
	}
	return err
}

func (s *State) read(name string, into any) error {
	path := filepath.Join(s.dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	return nil
}

func (s *State) write(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return host.WriteFileAtomic(filepath.Join(s.dir, name), append(b, '\n'), 0o600)
}
