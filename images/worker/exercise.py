# SPDX-License-Identifier: Apache-2.0
"""Uses the common parts of well-known packages in the zygote, so that calls find what a first use
makes: tables, caches, modules that load late, specialized bytecode. Afterwards a fork
does what most calls begin with once more, to find out which pages that writes (footprint.h).

Only for packages of the table below, where they were imported already, and from the environment:
`setup=` does it for other ones. Nothing stays but what the package keeps in itself. What would
leave anything else is left out of the next zygote.

polars and pyarrow are not here: importing them starts threads, and a fork has none of those. Nor is
what lets OpenMP start threads (`n_jobs`, KMeans, nearest neighbours), for the same reason.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import locale
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

TIMES = 8  # the interpreter specializes code that has run that often
SECONDS = 0.05  # after which no more is added to one package's

# Values to be encoded as results are: first those of what most calls begin with, then of the rest.
Uses = Iterator[list[Any]]

CSV = "a,b,c\n1,x,0.5\n2,y,\n3,x,1.5\n"
HTML = "<p class='a'>one <b>two</b></p>"


def use_numpy(np: Any) -> Uses:
    a = np.arange(12.0).reshape(3, 4)
    a.sum(), a.mean(), np.array([1, 2, 3]) * 2, a[a > 3], a @ a.T, np.zeros(3), np.sqrt(a)
    yield [a, a.sum()]
    b = np.array([[2.0, 1.0], [1.0, 3.0]])
    for made in (np.ones((2, 2)), np.linspace(0, 1, 5), np.array(["x", "y"]), a.astype(int)):
        repr(made)
    a.mean(axis=0), a.std(), a.max(), a.argmin(), a.T @ a, a[1:, ::2], a.tolist(), np.round(a, 1)
    np.where(a > 3, a, 0), np.sort(a[0]), np.unique(a), np.concatenate([a, a]), np.isnan(a).any()
    np.percentile(a, 50), np.linalg.inv(b), np.linalg.solve(b, b[0]), np.linalg.eigh(b)
    yield [np.arange(3), np.linalg.norm(b)]


def use_numpy_random(random: Any) -> Uses:
    made = random.default_rng()
    yield [made.normal(size=3), made.integers(0, 9, 3), random.rand(2)]
    made.random(3), made.choice([1, 2]), made.uniform(), made.permutation(5)
    random.seed(1), random.randn(2), random.randint(0, 9), random.normal(), random.random()


def use_pandas(pd: Any) -> Uses:
    s = pd.Series([1, 2, 3])
    f = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "x"]})
    yield [s.sum(), f["a"].sum()]
    (
        s.mean(),
        s.tolist(),
        f.a.max(),
        f.shape,
        s.max(),
        s.describe(),
        s.map(str),
        s.apply(float),
        s + 1,
        repr(s),
    )
    f["c"] = [0.5, None, 1.5]
    f["d"] = f.a * 2
    f.head(), f.dtypes, f.columns.tolist(), f.isna().sum(), f.fillna(0), f.dropna(), f.iloc[0]
    f[f.a > 1], f.loc[0, "a"], f.loc[f.b == "x", ["a"]], f[["a", "b"]], f.mean(numeric_only=True)
    f.groupby("b").a.sum(), f.groupby("b").agg({"a": "mean", "c": "max"}), f.groupby("b").size()
    f.sort_values("a", ascending=False), f.describe(), f.a.value_counts(), f.b.str.upper()
    f.merge(f[["a", "d"]], on="a"), pd.concat([f, f]), f.reset_index(), f.set_index("a")
    f.rename(columns={"a": "e"}), f.drop(columns=["c"]), f.astype({"a": float})
    f.apply(lambda row: row.a, axis=1), f.drop_duplicates("b"), f.to_dict("records")
    f.pivot_table(index="b", values="a", aggfunc="sum"), f.to_dict("list")
    times = pd.Series(range(3), index=pd.date_range("2024-01-01", periods=3))
    times.resample("D").sum(), times.rolling(2).mean(), pd.to_datetime(["2024-01-02"]), times.diff()
    read = pd.read_csv(io.StringIO(CSV))
    read.to_csv(index=False), read.to_json(), repr(read), read.to_string()
    yield [f, s, pickle.loads(pickle.dumps(f, 5))]


def use_scipy_optimize(optimize: Any) -> Uses:
    yield [optimize.minimize(lambda x: (x[0] - 1) ** 2 + x[1] ** 2, [0.0, 1.0]).x]
    optimize.brentq(lambda x: x * x - 2, 0, 2)
    optimize.curve_fit(lambda x, a, b: a * x + b, [0.0, 1.0, 2.0], [1.0, 3.0, 5.0])


def use_scipy_stats(stats: Any) -> Uses:
    a, b = [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 3.5]
    yield [stats.norm.cdf(1.0), stats.ttest_ind(a, b).pvalue]
    stats.norm.ppf(0.9), stats.norm.pdf(0.0), stats.t.cdf(1.0, 3), stats.zscore(a)
    stats.pearsonr(a, b), stats.linregress(a, b), stats.spearmanr(a, b)


def use_scipy_linalg(linalg: Any) -> Uses:
    b = [[2.0, 1.0], [1.0, 3.0]]
    yield [linalg.solve(b, [1.0, 2.0])]
    yield [linalg.eigh(b)[0], linalg.inv(b), linalg.svd(b)[1]]


def use_scipy_integrate(integrate: Any) -> Uses:
    yield [integrate.quad(lambda x: x * x, 0, 1)[0]]
    integrate.solve_ivp(lambda t, y: -y, (0, 1), [1.0])


def use_scipy_interpolate(interpolate: Any) -> Uses:
    x, y = [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 4.0, 9.0]
    yield [float(interpolate.interp1d(x, y)(1.5))]
    yield [float(interpolate.CubicSpline(x, y)(1.5))]


def use_scipy_sparse(sparse: Any) -> Uses:
    a = sparse.csr_matrix([[1.0, 0.0], [0.0, 2.0]])
    yield [(a @ a.T).toarray()]


def use_sklearn(linear_model: Any) -> Uses:
    x = [[float(n), float(n % 3)] for n in range(12)]
    y = [n % 2 for n in range(12)]
    yield [linear_model.LinearRegression().fit(x, y).predict(x)]
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import accuracy_score, mean_squared_error
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    here, there, ours, theirs = train_test_split(x, y, random_state=0)
    piped = make_pipeline(StandardScaler(), linear_model.LogisticRegression()).fit(here, ours)
    repr(piped), accuracy_score(theirs, piped.predict(there)), mean_squared_error(y, y)
    DecisionTreeClassifier(random_state=0).fit(here, ours).predict(there)
    RandomForestClassifier(3, random_state=0).fit(here, ours).predict_proba(there)


def use_pyplot(plt: Any) -> Uses:
    figure, axes = plt.subplots()
    axes.plot([1, 2, 3], [1, 4, 9], label="a")
    axes.bar([1, 2], [3, 4])
    axes.scatter([1, 2], [2, 1])
    axes.set(title="Title", xlabel="x", ylabel="y")
    axes.legend()
    figure.savefig(io.BytesIO(), format="png")
    plt.close(figure)
    # It keeps the files of its fonts open, and no cell has a descriptor of the zygote's.
    from matplotlib import font_manager

    font_manager._get_font.cache_clear()
    yield []


def use_pillow(image: Any) -> Uses:
    from PIL import ImageDraw

    made = image.new("RGB", (16, 16), "white")
    ImageDraw.Draw(made).rectangle((2, 2, 8, 8), fill="red")
    for kind in ("PNG", "JPEG"):
        file = io.BytesIO()
        made.resize((8, 8)).convert("L").save(file, kind)
        image.open(io.BytesIO(file.getvalue())).load()
    yield [made.getpixel((3, 3))]


def use_pydantic(pydantic: Any) -> Uses:
    from importlib import metadata

    # Its plugins are other packages' code, which is not for the zygote.
    if any(
        entry.group == "pydantic" for one in metadata.distributions() for entry in one.entry_points
    ):
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    space: dict[str, Any] = {"__name__": "__main__", "pydantic": pydantic}
    exec(
        "class Item(pydantic.BaseModel):\n"
        "    a: int\n"
        "    b: str = ''\n"
        "    c: list[float] | None = None\n",
        space,
    )
    item = space["Item"](a="1", c=[0.5])
    with contextlib.suppress(pydantic.ValidationError):
        space["Item"](a="x")
    repr(item)
    yield [space["Item"].model_validate_json(item.model_dump_json()).model_dump()]


def use_requests(requests: Any) -> Uses:
    with requests.Session() as session:
        made = requests.Request("POST", "http://localhost/a", params={"b": 1}, json={"c": 2})
        session.get_adapter("https://localhost/")
        yield [session.prepare_request(made).url]


def use_httpx(httpx: Any) -> Uses:
    with httpx.Client(trust_env=False) as client:
        made = client.build_request("POST", "http://localhost/a", params={"b": 1}, json={"c": 2})
        yield [str(made.url), httpx.Response(200, json={"a": 1}, request=made).json()]


def use_sympy(sympy: Any) -> Uses:
    x = sympy.symbols("x")
    sympy.diff(x**2 * sympy.sin(x), x), sympy.integrate(x**2, x), sympy.expand((x + 1) ** 2)
    sympy.factor(x**2 - 1), sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2)
    sympy.Matrix([[1, 2], [3, 4]]).inv(), sympy.lambdify(x, x + 1, "math")(2), sympy.latex(x / 2)
    yield [str(sympy.solve(x**2 - 2, x))]


def use_yaml(yaml: Any) -> Uses:
    yield [yaml.safe_load(yaml.safe_dump({"a": [1, 2.5, "x", None, True], "b": {"c": "d"}}))]


def use_jinja2(jinja2: Any) -> Uses:
    made = jinja2.Environment(autoescape=True).from_string(
        "{% for x in items %}{% if x %}{{ x|upper }}{% endif %}{% endfor %}"
    )
    yield [made.render(items=["a", ""]), jinja2.Template("{{ a }}").render(a=1)]


def use_networkx(networkx: Any) -> Uses:
    graph = networkx.Graph([(1, 2), (2, 3), (3, 4)])
    networkx.degree_centrality(graph), list(networkx.connected_components(graph))
    yield [networkx.shortest_path(graph, 1, 4)]


def use_bs4(bs4: Any) -> Uses:
    soup = bs4.BeautifulSoup(HTML, "html.parser")
    yield [
        soup.p.get_text(),
        str(soup),
        [str(b) for b in soup.find_all("b")],
        soup.select("p.a b")[0].text,
    ]


def use_lxml(etree: Any) -> Uses:
    root = etree.fromstring("<a><b c='1'>x</b></a>")
    yield [root.xpath("//b/@c")[0], etree.tostring(root)]


# Of what modules, in an order in which what the later ones use comes first.
USES: dict[str, Callable[[Any], Uses]] = {
    "numpy": use_numpy,
    "numpy.random": use_numpy_random,
    "pandas": use_pandas,
    "scipy.linalg": use_scipy_linalg,
    "scipy.sparse": use_scipy_sparse,
    "scipy.optimize": use_scipy_optimize,
    "scipy.integrate": use_scipy_integrate,
    "scipy.interpolate": use_scipy_interpolate,
    "scipy.stats": use_scipy_stats,
    "sklearn.linear_model": use_sklearn,
    "matplotlib.pyplot": use_pyplot,
    "PIL.Image": use_pillow,
    "pydantic": use_pydantic,
    "requests": use_requests,
    "httpx": use_httpx,
    "sympy": use_sympy,
    "yaml": use_yaml,
    "jinja2": use_jinja2,
    "networkx": use_networkx,
    "bs4": use_bs4,
    "lxml.etree": use_lxml,
}


def names(places: list[str]) -> list[str]:
    """What is to be exercised: of the table, what was imported from files below `places`."""
    found = []
    for name in USES:
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if isinstance(origin, str) and any(origin.startswith(place + "/") for place in places):
            found.append(name)
    return found


def once(name: str, encode: Callable[[Any], Any], whole: bool = True) -> None:
    """`whole`: not only what most calls begin with."""
    for values in USES[name](sys.modules[name]):
        for value in values:
            encode(value)
        if not whole:
            break


def run(name: str, encode: Callable[[Any], Any]) -> str:
    """Often enough; says what went wrong, if anything did."""
    start, reason = time.monotonic(), ""
    with unseen():
        for _ in range(TIMES):
            try:
                once(name, encode)
            except BaseException as error:
                reason = type(error).__name__
                break
            if time.monotonic() - start > SECONDS:
                break
    return reason


def left(before: tuple[Any, ...]) -> bool:
    """Whether there is anything beside these traces."""
    if traces() != before:
        gc.collect()
    return traces() != before


def traces() -> tuple[Any, ...]:
    """What an exercise must leave as it was, and cannot be put back."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    descriptors = sorted(os.listdir("/proc/self/fd"))
    with open("/proc/thread-self/children") as file:
        children = file.read()
    return descriptors, handlers, atexit._ncallbacks(), children


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Puts back what is of the whole process and not of the package."""
    environment, directory, path = dict(os.environ), os.getcwd(), sys.path[:]
    streams, words, mask = (sys.stdout, sys.stderr), locale.setlocale(locale.LC_ALL), os.umask(0o22)
    os.umask(mask)
    states = []
    for module, get, put in (
        ("random", "getstate", "setstate"),
        ("numpy.random", "get_state", "set_state"),
    ):
        source = sys.modules.get(module)
        if source is not None:
            states.append((getattr(source, put), getattr(source, get)()))
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout, sys.stderr = streams
        sys.path[:] = path
        for put_back, state in states:
            put_back(state)
        locale.setlocale(locale.LC_ALL, words)
        os.umask(mask)
        os.chdir(directory)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
