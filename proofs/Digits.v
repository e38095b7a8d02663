(* Digits.v - numbers that are rounded to integers: what errors these have.

   Activations, queries and weights become 16-bit digits, a power of two for each block. A digit
   errs by half a unit at most, so all of them, in the 2-norm, by a part of the block's norm: that
   is counted as a step, in units of 2^-24 (Errors.v, Units).

   Weights of a softmax are added up as integers; keys of the sampler are integers in the logits'
   order. *)

Require Import QArith Qabs List Bool Lia ZArith Lqa.
Import ListNotations.
Open Scope Z_scope.

(* ---- digits: of a decode linear, of queries, of weights times scales *)

Fixpoint squares (list : list Z) : Z :=
  match list with
  | [] => 0
  | x :: rest => x * x + squares rest
  end.

(* A block of a row: the largest magnitude, and pairs (activation, error of its digit). Numbers are
   integers of any common unit. *)
Definition block := (Z * list (Z * Z))%type.
Definition activations (b : block) : list Z := map fst (snd b).
Definition errors (b : block) : list Z := map snd (snd b).

(* The exponent of a block is the smallest with digits up to `digit`: a digit errs by half its unit,
   less than the largest activation by `digit`. *)
Definition rounded_block (size digit : Z) (b : block) : Prop :=
  Z.of_nat (length (snd b)) <= size /\ 0 <= fst b /\
  (exists x, In x (activations b) /\ Z.abs x = fst b) /\
  Forall (fun error => digit * Z.abs error <= fst b) (errors b).

Lemma squares_pos : forall list, 0 <= squares list.
Proof. induction list; simpl; nia. Qed.

Lemma squares_some : forall list x, In x list -> x * x <= squares list.
Proof.
  induction list as [| y list some]; intros x []; simpl.
  - subst. pose proof (squares_pos list). lia.
  - specialize (some x H). nia.
Qed.

Lemma squares_app : forall a b, squares (a ++ b) = squares a + squares b.
Proof. induction a as [| x a same]; intro b; simpl; [reflexivity |]. rewrite same. lia. Qed.

Lemma block_norm : forall size digit b, 0 <= digit -> rounded_block size digit b ->
  digit * digit * squares (errors b) <= size * squares (activations b).
Proof.
  intros size digit [top pairs] known [short [positive [[x [inside is_top]] small]]].
  cbn [fst snd] in *.
  assert (most : top * top <= squares (activations (top, pairs))).
  { rewrite <- is_top, Z.abs_square. apply squares_some, inside. }
  assert (each : digit * digit * squares (errors (top, pairs)) <=
    Z.of_nat (length (errors (top, pairs))) * (top * top)).
  { clear short inside most. unfold errors in *. cbn [snd] in *.
    induction (map snd pairs) as [| error rest induction]; [simpl; lia |].
    pose proof (Forall_inv small) as here. pose proof (Forall_inv_tail small) as later.
    cbn beta in here.
    specialize (induction later). cbn [squares length] in *.
    rewrite Nat2Z.inj_succ.
    assert (digit * digit * (error * error) <= top * top).
    { assert (0 <= digit * Z.abs error) by nia.
      rewrite <- (Z.abs_square error). nia. }
    nia. }
  unfold errors in each at 2. rewrite map_length in each. cbn [snd] in each. nia.
Qed.

Lemma blocks_norm : forall size digit row, 0 <= digit -> Forall (rounded_block size digit) row ->
  digit * digit * squares (concat (map errors row)) <=
  size * squares (concat (map activations row)).
Proof.
  intros size digit row known blocks. induction blocks as [| b row first rest induction];
    cbn [map concat]; [cbn [squares]; lia |].
  rewrite !squares_app. pose proof (block_norm size digit b known first). lia.
Qed.

Lemma dropped_norm : forall drop top dropped, 0 <= drop -> 0 <= top ->
  Forall (fun x => 2 ^ drop * Z.abs x <= top) dropped ->
  2 ^ (2 * drop) * squares dropped <= Z.of_nat (length dropped) * (top * top).
Proof.
  intros drop top dropped known positive small. replace (2 * drop) with (drop + drop) by lia.
  rewrite Z.pow_add_r by lia.
  assert (power : 0 < 2 ^ drop) by (apply Z.pow_pos_nonneg; lia).
  induction small as [| x dropped here later induction]; [cbn; lia |].
  cbn [squares length]. rewrite Nat2Z.inj_succ.
  assert (2 ^ drop * 2 ^ drop * (x * x) <= top * top).
  { assert (0 <= 2 ^ drop * Z.abs x) by nia.
    rewrite <- (Z.abs_square x).
    replace (2 ^ drop * 2 ^ drop * (Z.abs x * Z.abs x))
      with ((2 ^ drop * Z.abs x) * (2 ^ drop * Z.abs x)) by ring.
    apply Z.mul_le_mono_nonneg; assumption. }
  lia.
Qed.

(* What a schedule's numbers must satisfy: with digits up to `digit` in blocks of `size`, and up to
   k activations dropped that are 2^drop below the row's largest, the error is within `unit` 2^-24
   of the norm. *)
Definition digits_fine (size digit k drop unit : Z) : bool :=
  (1 <=? digit) && (0 <=? size) && (0 <=? k) && (0 <=? drop) &&
  (2 ^ 48 * (size * 2 ^ (2 * drop) + k * (digit * digit)) <=?
   unit * unit * (digit * digit * 2 ^ (2 * drop))).

(* Law digits_norm: the digits of a row err, together and in the 2-norm, by at most a unit's part of
   the row's norm, those of blocks that are dropped because they are so small among them.
   Mirrors: err_gemm. *)
Theorem digits_norm : forall size digit k drop unit,
  digits_fine size digit k drop unit = true ->
  forall row dropped top, Forall (rounded_block size digit) row ->
  Z.of_nat (length dropped) <= k ->
  (exists x, In x (concat (map activations row)) /\ Z.abs x = top) ->
  Forall (fun x => 2 ^ drop * Z.abs x <= top) dropped ->
  2 ^ 48 * squares (concat (map errors row) ++ dropped) <=
  unit * unit * squares (concat (map activations row) ++ dropped).
Proof.
  intros size digit k drop unit fine row dropped top blocks few [x [inside is_top]] small.
  unfold digits_fine in fine. rewrite !andb_true_iff, !Z.leb_le in fine.
  destruct fine as [[[[known size_known] k_known] drop_known] fine].
  pose proof (blocks_norm size digit row ltac:(lia) blocks) as kept.
  pose proof (dropped_norm drop top dropped drop_known ltac:(lia) small) as lost.
  pose proof (squares_some _ _ inside) as most. rewrite <- Z.abs_square, is_top in most.
  pose proof (squares_pos dropped) as positive. rewrite !squares_app.
  set (e := squares (concat (map errors row))) in *.
  set (a := squares (concat (map activations row))) in *.
  set (d := squares dropped) in *. set (q := digit * digit) in *.
  assert (power : 0 < 2 ^ (2 * drop)) by (apply Z.pow_pos_nonneg; lia).
  set (u := 2 ^ (2 * drop)) in *. set (v := 2 ^ 48) in *. set (w := unit * unit) in *.
  assert (v_some : 0 < v) by reflexivity. assert (w_some : 0 <= w) by apply Z.square_nonneg.
  assert (q_some : 1 <= q) by (unfold q; nia).
  assert (a_some : 0 <= a) by (apply Z.le_trans with (top * top); [nia | exact most]).
  assert (lost_all : u * d <= k * a).
  { apply Z.le_trans with (Z.of_nat (length dropped) * (top * top)); [exact lost |].
    apply Z.mul_le_mono_nonneg; lia. }
  clearbody e a d q u v w. clear - kept lost_all fine power v_some w_some q_some a_some positive.
  apply Z.mul_le_mono_pos_l with (q * u); [nia |].
  apply Z.le_trans with (v * (size * u + k * q) * a).
  - replace (q * u * (v * (e + d))) with (v * (u * (q * e) + q * (u * d))) by ring.
    replace (v * (size * u + k * q) * a) with (v * (u * (size * a) + q * (k * a))) by ring.
    apply Z.mul_le_mono_nonneg_l; [lia |].
    apply Z.add_le_mono; apply Z.mul_le_mono_nonneg_l; lia.
  - apply Z.le_trans with (w * (q * u) * a); [apply Z.mul_le_mono_nonneg_r; lia |].
    replace (q * u * (w * (a + d))) with (w * (q * u) * (a + d)) by ring.
    apply Z.mul_le_mono_nonneg_l; nia.
Qed.

Fixpoint dot (a b : list Z) : Z :=
  match a, b with
  | x :: a, y :: b => x * y + dot a b
  | _, _ => 0
  end.

Lemma cauchy : forall a b, dot a b * dot a b <= squares a * squares b.
Proof.
  induction a as [| x a less]; intros [| y b]; cbn [dot squares];
    try (pose proof (squares_pos a)); try (pose proof (squares_pos b)); try nia.
  specialize (less b). set (s := dot a b) in *. set (p := squares a) in *.
  set (q := squares b) in *.
  (* 2 x y s <= x^2 q + y^2 p, whose square is at least 4 x^2 y^2 p q *)
  assert (mean : 2 * (x * y * s) <= x * x * q + y * y * p).
  { apply Z.le_trans with (Z.abs (2 * (x * y * s))); [lia |].
    apply Z.square_le_simpl_nonneg; [nia |]. rewrite Z.abs_square.
    apply Z.le_trans with (4 * (x * x * (y * y)) * (p * q)).
    - replace (2 * (x * y * s) * (2 * (x * y * s))) with (4 * (x * x * (y * y)) * (s * s)) by ring.
      apply Z.mul_le_mono_nonneg_l; [nia | exact less].
    - pose proof (Z.square_nonneg (x * x * q - y * y * p)). nia. }
  nia.
Qed.

(* Law digits_linear: a linear of digits that err by a unit's part of the norm errs by that part of
   |x||w| at most (Cauchy and Schwarz), as when every activation were rounded to a format of it.
   Mirrors: err_gemm. *)
Theorem digits_linear : forall unit errors exact weights,
  2 ^ 48 * squares errors <= unit * unit * squares exact ->
  (2 ^ 24 * dot errors weights) * (2 ^ 24 * dot errors weights) <=
  unit * unit * (squares exact * squares weights).
Proof.
  intros unit errors exact weights near. pose proof (cauchy errors weights) as less.
  pose proof (squares_pos weights) as positive.
  apply Z.le_trans with (2 ^ 48 * (squares errors * squares weights)).
  - replace (2 ^ 24 * dot errors weights * (2 ^ 24 * dot errors weights))
      with (2 ^ 48 * (dot errors weights * dot errors weights)) by ring. lia.
  - rewrite !Z.mul_assoc. apply Z.mul_le_mono_nonneg_r; assumption.
Qed.

(* ---- the weights of a tile of keys *)

Open Scope Q_scope.
(* Pairs (weight, the integer that it is rounded to, in units of 2^-24). *)
Definition weight_sum (list : list (Q * Z)) : Q := fold_right (fun w sum => fst w + sum) 0 list.
Definition whole_sum (list : list (Q * Z)) : Z := fold_right (fun w sum => snd w + sum)%Z 0%Z list.
Definition rounded_weight (w : Q * Z) : Prop :=
  0 <= fst w /\ Qabs (inject_Z (snd w) - fst w * (2 ^ 24)) <= 1 # 2.

Lemma whole_pos : forall w, rounded_weight w -> (0 <= snd w)%Z.
Proof.
  intros [p n] [positive err]. cbn [fst snd] in *. apply Qabs_Qle_condition in err.
  change (2 ^ 24) with (16777216 # 1) in err.
  destruct (Z_lt_le_dec n 0) as [less | more]; [| exact more].
  assert (inject_Z n <= inject_Z (-1)) by (rewrite <- Zle_Qle; lia).
  change (inject_Z (-1)) with (- (1)) in *. lra.
Qed.

(* Law weights_near: of a tile the largest weight is 1 or more, since their unit is the floor of its
   own largest score. So the sum of the rounded weights of n keys errs by n 2^-25 of itself and of
   the exact one: by a step of n / 2 units, however many tiles there are.
   Mirrors: err_attn. *)
Theorem weights_near : forall keys list, Forall rounded_weight list ->
  (Z.of_nat (length list) <= Zpos keys)%Z -> Exists (fun w => 1 <= fst w) list ->
  let exact := weight_sum list in
  let computed := inject_Z (whole_sum list) * (1 # 2 ^ 24) in
  0 < computed /\ Qabs (computed - exact) <= (Zpos keys # 2 ^ 25) * exact /\
  Qabs (computed - exact) <= (Zpos keys # 2 ^ 25) * computed.
Proof.
  intros keys list rounded few largest exact computed.
  assert (err : Qabs (computed - exact) <= inject_Z (Z.of_nat (length list)) * (1 # 2 ^ 25)).
  { subst exact computed. clear few largest. induction rounded as [| [p n] list here later more].
    - cbn. discriminate.
    - destruct here as [_ here]. cbn [weight_sum whole_sum fold_right fst snd length] in *.
      fold (weight_sum list) (whole_sum list) in *.
      rewrite Nat2Z.inj_succ, <- Z.add_1_l, !inject_Z_plus.
      apply Qabs_Qle_condition in more. apply Qabs_Qle_condition in here.
      apply Qabs_Qle_condition. change (2 ^ 24) with (16777216 # 1) in here.
      change (1 # 2 ^ 24) with (1 # 16777216) in *. change (1 # 2 ^ 25) with (1 # 33554432) in *.
      change (inject_Z 1) with 1. split; lra. }
  assert (some : 1 <= exact /\ 1 <= computed).
  { subst exact computed. clear few err. induction rounded as [| [p n] list here later more].
    - inversion largest.
    - cbn [weight_sum whole_sum fold_right fst snd]. fold (weight_sum list) (whole_sum list).
      assert (rest : 0 <= weight_sum list /\ (0 <= whole_sum list)%Z).
      { clear - later. induction later as [| w list here later [more more']];
          [split; discriminate |].
        cbn [weight_sum whole_sum fold_right]. fold (weight_sum list) (whole_sum list).
        pose proof (whole_pos w here). destruct here. split; [lra | lia]. }
      pose proof (whole_pos (p, n) here) as positive. destruct here as [here here'].
      cbn [fst snd] in *. rewrite inject_Z_plus.
      change (1 # 2 ^ 24) with (1 # 16777216) in *. inversion largest as [w l first | w l found].
      + cbn [fst] in *. apply Qabs_Qle_condition in here'.
        change (2 ^ 24) with (16777216 # 1) in here'.
        assert (16777216 <= n)%Z.
        { destruct (Z_lt_le_dec n 16777216) as [less | enough]; [| exact enough].
          assert (inject_Z n <= inject_Z 16777215) by (rewrite <- Zle_Qle; lia).
          change (inject_Z 16777215) with (16777215 # 1) in *. lra. }
        assert (inject_Z 16777216 <= inject_Z n) by (rewrite <- Zle_Qle; assumption).
        assert (inject_Z 0 <= inject_Z (whole_sum list)) by (rewrite <- Zle_Qle; apply rest).
        change (inject_Z 16777216) with (16777216 # 1) in *. change (inject_Z 0) with 0 in *.
        destruct rest. split; lra.
      + destruct (more found).
        assert (inject_Z 0 <= inject_Z n) by (rewrite <- Zle_Qle; assumption).
        change (inject_Z 0) with 0 in *. split; lra. }
  assert (count : inject_Z (Z.of_nat (length list)) <= inject_Z (Zpos keys))
    by (rewrite <- Zle_Qle; exact few).
  assert (unit : Qabs (computed - exact) <= (Zpos keys # 2 ^ 25)).
  { apply Qle_trans with (inject_Z (Z.of_nat (length list)) * (1 # 2 ^ 25)); [exact err |].
    setoid_replace (Zpos keys # 2 ^ 25) with (inject_Z (Zpos keys) * (1 # 2 ^ 25))
      by (unfold Qeq; cbn; lia).
    apply Qmult_le_compat_r; [exact count | discriminate]. }
  assert (positive : 0 <= (Zpos keys # 2 ^ 25)) by discriminate.
  destruct some. split; [lra |]. split; nra.
Qed.
Close Scope Q_scope.

(* ---- the sampler's keys *)

(* The bits of a binary32 that is a number, as what its value is ordered by: sign and magnitude. *)
Definition order_of (bits : Z) : Z := if bits <? 2 ^ 31 then bits else 2 ^ 31 - bits.
(* key_of in templates/lib_sample.cu *)
Definition key_of (bits : Z) : Z :=
  if bits =? 2 ^ 31 then bits else if bits <? 2 ^ 31 then bits + 2 ^ 31 else 2 ^ 32 - 1 - bits.

(* Law greedy_exact: the sampler's keys are ordered as the logits are, and -0 is 0: the token of a
   greedy row is that of the largest logit. Nothing is rounded.
   Mirrors: m16_discard. *)
Theorem greedy_exact : forall a b, 0 <= a < 2 ^ 32 -> 0 <= b < 2 ^ 32 ->
  (key_of a < key_of b <-> order_of a < order_of b) /\
  (key_of a = key_of b <-> order_of a = order_of b).
Proof.
  intros a b low high. unfold key_of, order_of.
  destruct (Z.eqb_spec a (2 ^ 31)), (Z.eqb_spec b (2 ^ 31)), (Z.ltb_spec a (2 ^ 31)),
    (Z.ltb_spec b (2 ^ 31)); lia.
Qed.

(* ---- use *)

Open Scope Q_scope.
Example weights_near_used := weights_near 72 [(1, (2 ^ 24)%Z); (1 # 3, 5592405%Z)]
  ltac:(repeat constructor; cbn; discriminate) ltac:(cbn; discriminate)
  (Exists_cons_hd (fun w => 1 <= fst w) (1, (2 ^ 24)%Z) _ (Qle_refl 1)).
Close Scope Q_scope.
Example digits_norm_used := digits_norm 128 32639 37888 21 6021 eq_refl
  [(2 ^ 30, [(2 ^ 30, 30000); (-1, 7)])] [512] (2 ^ 30)
  ltac:(repeat constructor; cbn; try lia; exists (2 ^ 30); cbn; auto) ltac:(cbn; lia)
  (ex_intro _ (2 ^ 30) (conj (or_introl eq_refl) eq_refl)) ltac:(repeat constructor; cbn; lia).
Example digits_linear_used := digits_linear (2 ^ 23) [1; -1] [2; 2] [5; 3] ltac:(cbn; lia).
Example greedy_exact_used := greedy_exact (2 ^ 31) 0 ltac:(lia) ltac:(lia).

(* A unit less than that, or blocks of 256, would not do. *)
Example digits_in_less : digits_fine 128 32639 37888 21 6020 = false.
Proof. reflexivity. Qed.
Example digits_in_larger_blocks : digits_fine 256 32639 37888 21 6021 = false.
Proof. reflexivity. Qed.
