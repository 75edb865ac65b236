package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"weft/control/store"
	"weft/host"
	"weft/key"
)

// Files in a server's directory.
const (
	ServerKeyFile  = "server.key"
	SigningKeyFile = "signing.key"
	DatabaseFile   = "weft.db"
	LockFile       = "lock"
	SocketFile     = "admin.sock"
)

// Keys are what makes a server the one that its nodes joined. Whoever has them can be that server.
type Keys struct {
	Server  key.ServerPrivate  // of the Noise handshake; its public half is in every join token
	Signing key.SigningPrivate // of relay tickets
}

// NewKeys makes keys.
func NewKeys() Keys { return Keys{Server: key.NewPrivate[key.Server](), Signing: key.NewSigning()} }

// LoadOrCreateKeys reads the keys in a directory, or makes them where there are none.
func LoadOrCreateKeys(dir string) (Keys, error) {
	var k Keys
	err := loadOrCreate(filepath.Join(dir, ServerKeyFile), func(text string) (err error) {
		k.Server, err = key.ParsePrivate[key.Server](text)
		return err
	}, func() string {
		k.Server = key.NewPrivate[key.Server]()
		return k.Server.Reveal()
	})
	if err != nil {
		return Keys{}, err
	}
	err = loadOrCreate(filepath.Join(dir, SigningKeyFile), func(text string) (err error) {
		k.Signing, err = key.ParseSigning(text)
		return err
	}, func() string {
		k.Signing = key.NewSigning()
		return k.Signing.Reveal()
	})
	if err != nil {
		return Keys{}, err
	}
	return k, nil
}

func loadOrCreate(path string, parse func(string) error, create func() string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return host.WriteFileAtomic(path, []byte(create()+"\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("read the key: %w", err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read the key: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("the key %s can be read by others (its mode is %#o): chmod 600 it", path, st.Mode().Perm())
	}
	if err := parse(strings.TrimSpace(string(text))); err != nil {
		return fmt.Errorf("the key %s is damaged, restore it from a backup: %w", path, err)
	}
	return nil
}

// A Dir is a server's directory, which no other process uses for as long as it is open.
type Dir struct {
	Path   string
	Keys   Keys
	Store  store.Store
	unlock func() error
}

// OpenDir locks a directory, made where there is none, and opens what is in it, made where there is nothing.
func OpenDir(ctx context.Context, path string) (_ *Dir, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the server's directory: %w", err)
	}
	d := &Dir{Path: path}
	if d.unlock, err = host.LockFile(filepath.Join(path, LockFile)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = d.unlock()
		}
	}()
	database := filepath.Join(path, DatabaseFile)
	if missing(filepath.Join(path, ServerKeyFile)) && !missing(database) {
		return nil, fmt.Errorf("%s has a database but no %s, and with another key no node would know the server: "+
			"restore the key from a backup, or start anew in an empty directory", path, ServerKeyFile)
	}
	if d.Keys, err = LoadOrCreateKeys(path); err != nil {
		return nil, err
	}
	if d.Store, err = store.OpenSQLite(ctx, database); err != nil {
		return nil, err
	}
	return d, nil
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Close closes the store and lets others have the directory.
func (d *Dir) Close() error { return errors.Join(d.Store.Close(), d.unlock()) }
