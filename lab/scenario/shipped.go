package scenario

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Ext is how the name of a scenario's file ends.
const Ext = ".scn"

//go:embed shipped/*.scn
var shipped embed.FS

// Shipped are the names of the scenarios that come with weft, in alphabetical order.
func Shipped() (names []string) {
	files, _ := fs.ReadDir(shipped, "shipped") // it is part of the binary
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), Ext))
	}
	slices.Sort(names)
	return names
}

// ErrNone means that there is no such scenario.
var ErrNone = errors.New("no such scenario")

// Open reads a scenario by its name, if it comes with weft, or else from its file: what has a dot or a slash in it
// is a file's. The text is what was read, for who wants to keep it beside a result.
func Open(name string) (s Scenario, text []byte, err error) {
	if strings.ContainsAny(name, "./"+string(filepath.Separator)) {
		if text, err = readFile(name); err != nil {
			return s, nil, err
		}
		s, err = Parse(name, text)
		s.Name = strings.TrimSuffix(filepath.Base(name), Ext)
		return s, text, err
	}
	text, err = fs.ReadFile(shipped, path.Join("shipped", name+Ext))
	if err != nil {
		return s, nil, fmt.Errorf("%w: %s. A file's name has a dot or a slash in it", ErrNone, unknown(name, "scenario that comes with weft", Shipped()))
	}
	s, err = Parse(name, text)
	return s, text, err
}

// readFile reads a file that ought to be short.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory: expected a scenario's file", name)
	case info.Size() > MaxText:
		return nil, fmt.Errorf("%s is longer than %d KiB: expected a scenario's file", name, MaxText>>10)
	}
	return os.ReadFile(name)
}
